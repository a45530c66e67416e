"""Writes responses without the steps of Werkzeug that are not needed here."""

from http import HTTPStatus
from typing import TYPE_CHECKING

from flask import Response
from werkzeug.datastructures import Headers

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

WITHOUT_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)


class WholeResponse(Response):
    """A response whose headers are sent as they are.

    Werkzeug copies them to turn an IRI in Location into a URI; ours are ASCII.
    """

    def get_wsgi_headers(self, environ: "WSGIEnvironment") -> Headers:
        if self.status_code in WITHOUT_BODY or "Content-Length" not in self.headers:
            return super().get_wsgi_headers(environ)
        return self.headers
