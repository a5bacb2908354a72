/* Pages in browsers: which of them may ask, and by which name of this server.
 *
 * A browser lets any page send requests to any address, also to this machine. It names the page in Origin and says in
 * Sec-Fetch-Site where that came from. Host is the name in the address that the page chose: a page whose own name has
 * been pointed at this machine (DNS rebinding) has the origin of the server, but not one of its names. */
#ifndef CAMBIUM_SERVE_ORIGIN_H
#define CAMBIUM_SERVE_ORIGIN_H

#include "request.h"
#include "server.h"

/* The origin of the page that asks, where --cors-origin names it; else NULL. The string is the exchange's. */
const char *origin_allowed(const struct exchange *exchange);
/* True when the request may go on. False sets the error: ERROR_HOST where the listener checks names and Host is none of
 * them; ERROR_PERMISSION where a page of another origin would change something, or asks the control listener. Uses
 * exchange->request->cors_origin. */
bool origin_check(const struct exchange *exchange, struct error *error);
/* True when a listener at this address ("H:P", or "unix:PATH") checks the names that requests call it by. `has_keys`:
 * it wants a key, which no page knows. */
bool origin_checks_names(const struct serve_options *options, const char *address, bool has_keys);
/* True for an address that only this machine reaches. */
bool origin_is_local(const char *address);

#endif
