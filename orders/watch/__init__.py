"""What watches the service: doctor, metrics and traces."""
