"""The Redis keys of a queue.

They share one hash tag, so that a cluster keeps them together::

    {name}:scheduled    zset    task id -> due time, ms
    {name}:leased       zset    task id -> lease expiry, ms
    {name}:dead         zset    task id -> when it died, ms, to the microsecond
    {name}:letters      hash    task id -> why it is dead, JSON
    {name}:payloads     hash    task id -> opaque bytes, for tasks with a payload
    {name}:tokens       hash    task id -> token of its lease and what is known of its attempts, for tasks
                                that were claimed: lua/include/attempts.lua lists the fields
    {name}:claims       zset    claimer -> end of the leases that its latest claim gave, ms
    {name}:control      hash    paused: present while the queue is paused: by whom and why, JSON
                                sweeper: which worker sweeps, and until when
                                alone: id of the suspect that was last claimed alone
                                recurrence: the cron schedule, when its worker started, until when it is in force
    {name}:seeded       zset    occurrence of a recurring task -> due time, ms: the last hundred that were scheduled
    {name}:workers      hash    worker id -> what it is and holds, JSON
    {name}:heard        zset    worker id -> when it was last heard from, ms
    {name}:wake         channel a message when something is due earlier than before: in how many us
"""

from .scripts import ScriptFile


class Keys:
    """The name of every Redis key, spelled only here."""

    def __init__(self, name: str) -> None:
        self.scheduled = f"{{{name}}}:scheduled"
        self.leased = f"{{{name}}}:leased"
        self.dead = f"{{{name}}}:dead"
        self.letters = f"{{{name}}}:letters"
        self.payloads = f"{{{name}}}:payloads"
        self.tokens = f"{{{name}}}:tokens"
        self.claims = f"{{{name}}}:claims"
        self.control = f"{{{name}}}:control"
        self.seeded = f"{{{name}}}:seeded"
        self.workers = f"{{{name}}}:workers"
        self.heard = f"{{{name}}}:heard"
        self.channel = f"{{{name}}}:wake"

    def of(self, script: ScriptFile) -> list[str]:
        """The keys that a script takes, in the script's order."""
        return [getattr(self, key) for key in script.keys]

    def stored(self) -> list[str]:
        """All but the wake channel, which is not a key."""
        return [key for key in vars(self).values() if key != self.channel]
