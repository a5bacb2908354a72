/* Browser pages: which of them may send requests, and under which name of this server.
 *
 * A browser lets any page send requests to any address, even to this machine. It names the page in Origin, and says in
 * Sec-Fetch-Site where the request came from. Host is the name in the address that the page chose. A page whose own
 * name points at this machine (DNS rebinding) therefore has the server's origin, but not one of its names. */
#pragma once

#include "request.h"
#include "server.h"

/* Returns the origin of the page if --cors-origin names it, else NULL. The exchange owns the string. */
const char *origin_allowed(const struct exchange *exchange);
/* Checks a request. On failure sets the error. ERROR_HOST: the listener checks names, and Host is not one of them.
 * ERROR_PERMISSION: a page of another origin would change something, or uses the control listener. Uses
 * exchange->request->cors_origin. */
bool origin_check(const struct exchange *exchange, struct error *error);
/* True when a listener at this address ("H:P", or "unix:PATH") must check the Host of requests. `has_keys`: it requires
 * a key, which no page knows. */
bool origin_checks_names(const struct serve_options *options, const char *address, bool has_keys);
/* True for an address that only this machine can reach. */
bool origin_is_local(const char *address);
