/* Languages of numbers: bounds, multiples and constants, compared digit by digit, so that they are exact.
 *
 * Each holds all spellings of its values without an exponent, as complements need it. Values of at least 1e16, or below
 * 1e-4, are allowed with an exponent too where a bound allows all of them: json.dumps writes them so. */
#include "schema-internal.h"

#include <math.h>

enum { MAX_STEP = 10000, MAX_PLACES = 6, MAX_DIGITS = 352 };
static const double SMALLEST = 1e-4, LARGEST = 1e16;

/* A number in decimal: no zeros before its integer part but one, none after its fraction. */
struct decimal {
    char whole[MAX_DIGITS], fraction[MAX_DIGITS], text[32]; /* text: as Python writes a real one with an exponent */
    bool is_negative, is_zero;
    double value;
};

static void read_decimal(const json_t *number, struct decimal *d) {
    *d = (struct decimal){.value = json_number_value(number)};
    char digits[32];
    int exponent = 0, precision = 0;
    if (json_is_integer(number)) {
        long long integer = json_integer_value(number);
        d->is_negative = integer < 0;
        snprintf(d->whole, sizeof d->whole, "%llu",
                 integer < 0 ? 0 - (unsigned long long)integer : (unsigned long long)integer);
        d->is_zero = integer == 0;
        return;
    }
    do /* the shortest that reads back */
        snprintf(digits, sizeof digits, "%.*e", precision, d->value);
    while (strtod(digits, NULL) != d->value && ++precision < 17);
    d->is_negative = *digits == '-';
    const char *mantissa = digits + d->is_negative, *mark = strchr(digits, 'e');
    exponent = atoi(mark + 1);
    if (exponent < -4 || exponent >= 16)
        snprintf(d->text, sizeof d->text, "%s", digits);
    size_t whole = 0, fraction = 0;
    if (exponent < 0) {
        d->whole[whole++] = '0';
        while ((int)fraction < -exponent - 1)
            d->fraction[fraction++] = '0';
    }
    for (int left = exponent; mantissa < mark || left >= 0; left--) {
        if (mantissa < mark && *mantissa == '.')
            mantissa++;
        char digit = '0';
        if (mantissa < mark)
            digit = *mantissa++;
        if (left >= 0)
            d->whole[whole++] = digit;
        else
            d->fraction[fraction++] = digit;
    }
    while (fraction && d->fraction[fraction - 1] == '0')
        d->fraction[--fraction] = 0;
    d->is_zero = d->value == 0;
}

static regex digits_between(struct regexes *r, char first, char last) {
    return first <= last ? regex_byte(r, (uint8_t)first, (uint8_t)last) : REGEX_NOTHING;
}

static regex digits(struct regexes *r, int32_t least, int32_t most) {
    return regex_repeat(r, regex_byte(r, '0', '9'), least, most);
}

static regex optional(struct regexes *r, regex one) {
    return regex_either(r, REGEX_EMPTY, one);
}

/* Digit texts of the same length that first differ from `text` by a digit above (or below) it. `rest`: at least as many
 * digits as are left in a fraction, exactly as many in an integer part. */
static regex differing(struct regexes *r, const char *text, bool is_above, bool is_fraction) {
    regex found = REGEX_NOTHING;
    size_t length = strlen(text);
    for (size_t i = length; i-- > 0;) {
        char lowest = !is_fraction && i == 0 && length > 1 ? '1' : '0';
        regex digit =
            is_above ? digits_between(r, (char)(text[i] + 1), '9') : digits_between(r, lowest, (char)(text[i] - 1));
        int32_t left = (int32_t)(length - i - 1);
        regex here = regex_join(r, digit, is_fraction ? digits(r, 0, REGEX_ENDLESS) : digits(r, left, left));
        /* The next digits may differ, or this one. */
        regex same = regex_join(r, digits_between(r, text[i], text[i]), found);
        found = regex_either(r, here, same);
    }
    return found;
}

/* Numbers without a sign at least as large as a decimal, or at most. */
static regex beyond(struct regexes *r, const struct decimal *d, bool is_least, bool is_strict) {
    regex point = regex_byte(r, '.', '.'), zero = regex_byte(r, '0', '0');
    regex zeros = regex_repeat(r, zero, 0, REGEX_ENDLESS),
          any = optional(r, regex_join(r, point, digits(r, 1, REGEX_ENDLESS)));
    int32_t length = (int32_t)strlen(d->whole), places = (int32_t)strlen(d->fraction);
    regex whole = differing(r, d->whole, is_least, false);
    regex nonzero = regex_join(r, digits_between(r, '1', '9'), REGEX_EMPTY);
    if (is_least)
        whole = regex_either(r, whole, regex_join(r, nonzero, digits(r, length, REGEX_ENDLESS)));
    else if (length > 1)
        whole = regex_either(r, whole, regex_either(r, zero, regex_join(r, nonzero, digits(r, 0, length - 2))));
    /* The same integer part: compare fractions. */
    regex same = regex_text(r, d->whole, (size_t)length);
    regex exact = regex_join(r, regex_text(r, d->fraction, (size_t)places), zeros);
    regex larger = regex_sequence(
        r, (regex[]){regex_text(r, d->fraction, (size_t)places), zeros, nonzero, digits(r, 0, REGEX_ENDLESS)}, 4);
    regex fraction = differing(r, d->fraction, is_least, true);
    bool has_none = places == 0 ? !is_strict : !is_least; /* without a fraction */
    if (is_least)
        fraction = regex_either(r, fraction, larger);
    for (int32_t i = 1; i < places && !is_least; i++) /* a beginning of the fraction is below it */
        fraction = regex_either(r, fraction, regex_text(r, d->fraction, (size_t)i));
    if (!is_strict)
        fraction = regex_either(r, fraction, exact);
    fraction = regex_join(r, point, fraction);
    return regex_either(r, regex_join(r, whole, any), regex_join(r, same, has_none ? optional(r, fraction) : fraction));
}

/* Numbers with an exponent of at least 16, or at most -5. */
static regex with_exponent(struct regexes *r, bool is_huge) {
    regex e = regex_either(r, regex_byte(r, 'e', 'e'), regex_byte(r, 'E', 'E'));
    regex sign = is_huge ? optional(r, regex_byte(r, '+', '+')) : regex_byte(r, '-', '-');
    regex low = is_huge ? regex_join(r, regex_byte(r, '1', '1'), regex_byte(r, '6', '9'))
                        : regex_join(r, regex_byte(r, '0', '0'), regex_byte(r, '5', '9'));
    regex high = regex_join(r, regex_byte(r, is_huge ? '2' : '1', '9'), digits(r, 1, 1));
    regex fraction = regex_join(r, regex_byte(r, '.', '.'), digits(r, 1, 20));
    return regex_sequence(
        r, (regex[]){digits_between(r, '1', '9'), optional(r, fraction), e, sign, regex_either(r, low, high)}, 5);
}

regex number_bound(struct schema *schema, const json_t *bound, bool is_least, bool is_strict) {
    struct regexes *r = schema->regexes;
    struct decimal d;
    read_decimal(bound, &d);
    regex minus = regex_byte(r, '-', '-'),
          unsigned_any = regex_join(r, digits(r, 1, REGEX_ENDLESS),
                                    optional(r, regex_join(r, regex_byte(r, '.', '.'), digits(r, 1, REGEX_ENDLESS))));
    /* Is the bound on the side of 0 where all numbers of the other sign are allowed? */
    bool is_beyond_zero = d.is_zero ? is_strict : d.is_negative != is_least;
    regex near = beyond(r, &d, is_beyond_zero, is_strict), positive, negative;
    if (is_beyond_zero) {
        positive = is_least ? near : REGEX_NOTHING;
        negative = is_least ? REGEX_NOTHING : near;
    } else {
        positive = is_least ? unsigned_any : near;
        negative = is_least ? near : unsigned_any;
    }
    regex texts = regex_both(r, schema->plain_number, regex_either(r, positive, regex_join(r, minus, negative)));
    if (is_strict && !d.is_zero) /* a reader that rounds must not reach the bound */
        texts = regex_both(r, texts, schema->exact_numbers);
    double sign = is_least ? 1 : -1, v = d.value * sign; /* as if it were a minimum */
    regex same = is_least ? REGEX_EMPTY : minus, other = is_least ? minus : REGEX_EMPTY;
    if (v <= LARGEST)
        texts = regex_either(r, texts, regex_join(r, same, with_exponent(r, true)));
    if (v <= 0)
        texts = regex_either(r, texts, regex_join(r, same, with_exponent(r, false)));
    if (v <= -SMALLEST)
        texts = regex_either(r, texts, regex_join(r, other, with_exponent(r, false)));
    return texts;
}

int number_multiples(struct schema *schema, const json_t *step, regex *language) {
    struct regexes *r = schema->regexes;
    struct decimal d;
    read_decimal(step, &d);
    int32_t places = (int32_t)strlen(d.fraction);
    double scaled = round(d.value * pow(10, places));
    if (places > MAX_PLACES || scaled > MAX_STEP || scaled < 1)
        return STATUS_NOT_FOUND;
    regex zeros = regex_repeat(r, regex_byte(r, '0', '0'), 0, REGEX_ENDLESS), point = regex_byte(r, '.', '.');
    regex found = REGEX_NOTHING;
    for (int32_t k = 0; k <= places;
         k++) { /* numbers with k digits in their fraction, and zeros at the end of k = places */
        uint32_t modulus = (uint32_t)scaled;
        for (int32_t i = k; i < places; i++) { /* the number is to be multiplied by 10 */
            modulus /= modulus % 2 ? 1 : 2;
            modulus /= modulus % 5 ? 1 : 5;
        }
        regex text = digits(r, 1, REGEX_ENDLESS);
        if (k)
            text = regex_sequence(r, (regex[]){text, point, digits(r, k, k)}, 3);
        text = regex_both(r, text, regex_multiple(r, modulus, 0));
        regex end = k ? zeros : optional(r, regex_sequence(r, (regex[]){point, regex_byte(r, '0', '0'), zeros}, 3));
        found = regex_either(r, found, regex_join(r, text, end));
    }
    *language = regex_both(r, schema->plain_number, regex_join(r, optional(r, regex_byte(r, '-', '-')), found));
    return STATUS_OK;
}

regex number_constant(struct schema *schema, const json_t *value, enum spelling *spelling) {
    struct regexes *r = schema->regexes;
    struct decimal d;
    read_decimal(value, &d);
    regex zero = regex_byte(r, '0', '0'), point = regex_byte(r, '.', '.'), minus = regex_byte(r, '-', '-');
    regex sign = d.is_zero ? optional(r, minus) : d.is_negative ? minus : REGEX_EMPTY;
    regex whole = regex_join(r, sign, regex_text(r, d.whole, strlen(d.whole)));
    regex fraction = regex_sequence(r,
                                    (regex[]){point, regex_text(r, d.fraction, strlen(d.fraction)),
                                              regex_repeat(r, zero, *d.fraction ? 0 : 1, REGEX_ENDLESS)},
                                    3);
    regex texts =
        regex_both(r, schema->plain_number, regex_join(r, whole, *d.fraction ? fraction : optional(r, fraction)));
    *spelling = json_is_real(value) && !*d.fraction ? ANY_SPELLING : SHORTEST;
    return *d.text ? regex_either(r, texts, regex_text(r, d.text, strlen(d.text))) : texts;
}
