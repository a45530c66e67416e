"""Writes the description of the API: ``make openapi``."""

from orders.app import create_app
from orders.config import Settings
from orders.http.openapi import FILE, written

if __name__ == "__main__":
    app = create_app(Settings(database_url="postgresql+psycopg:///none", redis_url="redis://none"))
    FILE.write_text(written(app))
