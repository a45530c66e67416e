"""Scheduling from asyncio: a FastAPI application whose tasks are handled by a worker elsewhere.

granian --interface asgi examples.fastapi_app:app    # or uvicorn; with REDIS_URL
curl -X PUT 'localhost:8000/reminders/tea?seconds=60'
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request

from worker import DelayQueue, connect


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One client for the process, closed at shutdown."""
    with connect(os.environ["REDIS_URL"], reconnect=True) as client:
        app.state.reminders = DelayQueue(client, "reminders")
        yield


app = FastAPI(lifespan=lifespan)


@app.put("/reminders/{name}")
async def remind(name: str, seconds: float, request: Request) -> dict[str, Any]:
    """Schedule a reminder. A second PUT with another delay moves it."""
    reminders: DelayQueue = request.app.state.reminders
    answer = await asyncio.to_thread(reminders.schedule, name, delay_ms=1000 * seconds)
    return {"name": name, "result": answer.value}


@app.delete("/reminders/{name}")
async def forget(name: str, request: Request) -> dict[str, Any]:
    answer = await asyncio.to_thread(request.app.state.reminders.cancel, name)
    return {"name": name, "result": answer.value}
