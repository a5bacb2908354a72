/* The field "date", written once a second. */
#include "connection-internal.h"

const char *transport_date(struct transport *transport) {
    time_t now = time(NULL);
    struct tm parts;
    if (now != transport->date_second && gmtime_r(&now, &parts)) {
        static const char days[] = "SunMonTueWedThuFriSat", months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
        transport->date_second = now;
        snprintf(transport->date, sizeof transport->date, "%.3s, %02d %.3s %d %02d:%02d:%02d GMT",
                 days + 3 * parts.tm_wday, parts.tm_mday, months + 3 * parts.tm_mon, parts.tm_year + 1900,
                 parts.tm_hour, parts.tm_min, parts.tm_sec);
    }
    return transport->date;
}
