"""Lets both ends of a connection prove that they know the run id, which is not sent.

    client                                    run store
      {"protocol": 2, "nonce": N}        ->
                                         <-   {"value": {"nonce": M}}
      {"proof": HMAC("client", N, M)}    ->
                                         <-   {"value": {"proof": HMAC("run store", N, M)}}

The client proves it first: a stranger gets nothing that he could try guesses on. What follows is neither
encrypted nor signed; listen on loopback or a private network.
"""

from __future__ import annotations

import hmac
import secrets

PROTOCOL = 3
"""Of the messages as a whole; an end of another one is refused in words."""

WRONG_RUN = "wrong run id"


def draw_nonce() -> str:
    """Draws a number that is used once."""
    return secrets.token_hex(16)


def prove(run_id: str, who: str, client_nonce: str, store_nonce: str) -> str:
    """Returns what shows that the sender knows `run_id`, to whoever drew one of the nonces.

    Args:
        run_id: the run's secret.
        who: "client" or "run store": what one says cannot be sent back as the other's.
        client_nonce: the client's.
        store_nonce: the run store's.
    """
    text = "|".join(("agentkit run store", str(PROTOCOL), who, client_nonce, store_nonce))
    return hmac.new(run_id.encode(), text.encode(), "sha256").hexdigest()


def is_proof(found: object, run_id: str, who: str, client_nonce: str, store_nonce: str) -> bool:
    """Returns whether `found` is what `prove` gives."""
    expected = prove(run_id, who, client_nonce, store_nonce)
    return isinstance(found, str) and hmac.compare_digest(found.encode(), expected.encode())
