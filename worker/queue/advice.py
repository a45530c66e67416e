"""What to do about a Redis error that retrying does not fix."""

from redis import exceptions


def redis_advice(error: BaseException) -> str:
    """One clause for whoever reads the error; empty where there is no advice."""
    text = str(error)
    match error:
        case exceptions.AuthenticationError():  # a subclass of ConnectionError, so it comes first
            return "check the user and the password in REDIS_URL"
        case exceptions.NoPermissionError() if "channel" in text:
            return "give this user the channels of its queues in its ACL, such as &{reminders}:*"
        case exceptions.NoPermissionError():
            return (
                "give this user the keys of its queues and the commands in its ACL, "
                "such as ~{reminders}:* +@all -@dangerous +info"
            )
        case exceptions.ConnectionError() if "connecting to" in text:
            return "check the host and the port in REDIS_URL, and that Redis runs there"
        case _:
            return ""
