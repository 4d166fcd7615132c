/* The walk over the records of a batch, which checks them: for the compiled modules that include it. In Python:
 * pylogd.wire.validation; tests/property/test_validation.py compares both.
 */
#ifndef PYLOGD_INSPECT_H
#define PYLOGD_INSPECT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum {
    INT_BYTES = 5,     /* of a varint of 32 bits: the Java client reads no longer one */
    LONG_BYTES = 10,   /* of 64 bits */
    BATCH_HEADER = 61, /* bytes in front of the records */
    MIN_RECORD = 7,
    MAX_PLACES = 1000, /* of refused records that are named */
    LONG_WALK = 1 << 16, /* bytes from which on the interpreter may run other threads meanwhile */
    LARGE_RECORD = 256, /* bytes, and */
    AHEAD = 16,        /* records: see walk */
};

static const char OVER_BATCH[] = "extends past the end of its batch", OVER_RECORD[] = "has fields that extend past its end",
                  LONG_NUMBER[] = "has a varint of too many bytes", BAD_DELTA[] = "has a wrong offset delta",
                  BAD_LENGTH[] = "has a negative length", BAD_HEADERS[] = "has an impossible number of headers",
                  NO_HEADER_KEY[] = "has a header without a key", BAD_END[] = "has another length than its fields",
                  BAD_STAMP[] = "has a time stamp of more than 64 bits", BAD_COUNT[] = "is missing",
                  TRAILING[] = "is followed by other bytes";

typedef struct {
    Py_ssize_t good;     /* the number of valid records before the first malformed one */
    const char *problem; /* how the next record, or the last, is malformed; NULL for nothing */
    int64_t oldest;      /* the smallest time stamp that is not negative; -1 for none */
    int64_t newest;      /* the largest time stamp */
    Py_ssize_t keyless, untimely; /* their numbers */
    int32_t keyless_at[MAX_PLACES], untimely_at[MAX_PLACES]; /* the indexes of the first of them */
} Inspection;

static inline int64_t
unzigzag(uint64_t value)
{
    return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

static const char *
take_long(const uint8_t **place, const uint8_t *end, int most, uint64_t *value)
{
    const uint8_t *at = *place;
    uint64_t result = 0;
    for (int i = 0; i < most; i++) {
        if (at >= end)
            return OVER_RECORD;
        uint8_t byte = *at++;
        result |= (uint64_t)(byte & 0x7F) << 7 * i;
        if (byte < 128) {
            if (i == LONG_BYTES - 1 && byte > 1)
                return LONG_NUMBER;
            *place = at;
            *value = result;
            return NULL;
        }
    }
    return LONG_NUMBER;
}

/* A varint of at most so many bytes, before zig-zag is undone; NULL, or what is wrong. */
static inline __attribute__((always_inline)) const char *
take(const uint8_t **place, const uint8_t *end, int most, uint64_t *value)
{
    const uint8_t *at = *place;
    if (end - at >= 2) {
        if (at[0] < 128) {
            *value = at[0];
            *place = at + 1;
            return NULL;
        }
        if (at[1] < 128) {
            *value = (uint64_t)(at[0] & 0x7F) | (uint64_t)at[1] << 7;
            *place = at + 2;
            return NULL;
        }
        if (end - at >= 3 && at[2] < 128) {
            *value = (uint64_t)(at[0] & 0x7F) | (uint64_t)(at[1] & 0x7F) << 7 | (uint64_t)at[2] << 14;
            *place = at + 3;
            return NULL;
        }
    }
    return take_long(place, end, most, value);
}

/* Go over bytes behind their length; `null` says whether there are none. */
static inline __attribute__((always_inline)) const char *
skip_sized(const uint8_t **place, const uint8_t *end, int *null)
{
    uint64_t length;
    const char *problem = take(place, end, INT_BYTES, &length);
    if (problem != NULL)
        return problem;
    *null = length == 1;
    if (*null)
        return NULL;
    if (length & 1)
        return BAD_LENGTH;
    if (length >> 1 > (uint64_t)(end - *place))
        return OVER_RECORD;
    *place += length >> 1;
    return NULL;
}

static const char *
skip_headers(const uint8_t **place, const uint8_t *end, uint64_t count)
{
    if (count & 1 || count > (uint64_t)(end - *place)) /* each takes two bytes, and zig-zag has doubled the count */
        return BAD_HEADERS;
    for (count >>= 1; count; count--) {
        int null;
        const char *problem = skip_sized(place, end, &null);
        if (problem == NULL && null)
            problem = NO_HEADER_KEY;
        if (problem != NULL || (problem = skip_sized(place, end, &null)) != NULL)
            return problem;
    }
    return NULL;
}

/* Take one record; its time stamp, and whether it has no key. */
static inline __attribute__((always_inline)) const char *
inspect_record(const uint8_t **place, const uint8_t *end, uint64_t index, int64_t base, int64_t *time, int *keyless)
{
    const uint8_t *at = *place, *stop;
    uint64_t length, stamp, delta, headers;
    const char *problem;
    int null;
    if ((problem = take(&at, end, INT_BYTES, &length)) != NULL)
        return problem == OVER_RECORD ? OVER_BATCH : problem;
    if (length & 1)
        return BAD_LENGTH;
    if (length >> 1 > (uint64_t)(end - at))
        return OVER_BATCH;
    if (length == 0)
        return OVER_RECORD;
    stop = at + (length >> 1);
    at++; /* attributes: none are in use */
    if ((problem = take(&at, stop, LONG_BYTES, &stamp)) != NULL
        || (problem = take(&at, stop, INT_BYTES, &delta)) != NULL)
        return problem;
    if (delta != index << 1)
        return BAD_DELTA;
    if (__builtin_add_overflow(base, unzigzag(stamp), time))
        return BAD_STAMP;
    if ((problem = skip_sized(&at, stop, keyless)) != NULL || (problem = skip_sized(&at, stop, &null)) != NULL
        || (problem = take(&at, stop, INT_BYTES, &headers)) != NULL)
        return problem;
    if (headers && (problem = skip_headers(&at, stop, headers)) != NULL)
        return problem;
    *place = stop;
    return at == stop ? NULL : BAD_END;
}

/* Walk over records; how many are sound. With `large`, have the cache fetch what will be read next, on the guess that
 * records are as long as the last one: a record has to be read to know where the next one begins, so without this the
 * walk waits for memory at each. Shorter ones the processor foresees by itself.
 */
static inline __attribute__((always_inline)) Py_ssize_t
walk(const uint8_t **place, const uint8_t *end, Py_ssize_t count, int64_t base, int64_t earliest, int64_t latest,
     Inspection *found, int detailed, int large)
{
    const uint8_t *at = *place;
    int64_t oldest = INT64_MAX, newest = INT64_MIN, time = 0;
    int keyless = 0;
    Py_ssize_t i = 0;
    for (; i < count; i++) {
        const uint8_t *start = at;
        if ((found->problem = inspect_record(&at, end, (uint64_t)i, base, &time, &keyless)) != NULL)
            break;
        if (large && AHEAD * (at - start) < end - at)
            __builtin_prefetch(at + AHEAD * (at - start));
        if (time > newest)
            newest = time;
        if (time < oldest && time >= 0)
            oldest = time;
        if (!detailed)
            continue;
        if (keyless && found->keyless++ < MAX_PLACES)
            found->keyless_at[found->keyless - 1] = (int32_t)i;
        if (time >= 0 && (time < earliest || time > latest) && found->untimely++ < MAX_PLACES)
            found->untimely_at[found->untimely - 1] = (int32_t)i;
    }
    found->oldest = oldest == INT64_MAX ? -1 : oldest;
    found->newest = i ? newest : -1;
    *place = at;
    return i;
}

static inline __attribute__((always_inline)) void
inspect(const uint8_t *at, const uint8_t *end, Py_ssize_t count, int64_t base, int64_t earliest, int64_t latest,
        Inspection *found, int detailed)
{
    const char *bad_count = NULL;
    found->problem = NULL;
    found->keyless = found->untimely = 0;
    if (count < 1 || count > (end - at) / MIN_RECORD) {
        bad_count = BAD_COUNT;
        count = 0;
    }
    if (count && (end - at) / count >= LARGE_RECORD)
        found->good = walk(&at, end, count, base, earliest, latest, found, detailed, 1);
    else
        found->good = walk(&at, end, count, base, earliest, latest, found, detailed, 0);
    if (bad_count != NULL)
        found->problem = bad_count;
    else if (found->problem == NULL && at != end)
        found->problem = TRAILING;
}

static inline uint64_t
big_endian(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value = value << 8 | at[i];
    return value;
}

/* Add the decompressed size of a raw snappy block to `size`. Returns whether the block is well-formed. */
static int
inspect_snappy(const uint8_t *at, const uint8_t *end, uint64_t *size)
{
    uint64_t total, made = 0;
    if (take(&at, end, INT_BYTES, &total) != NULL || total > UINT32_MAX)
        return 0;
    while (at < end) {
        uint64_t tag = *at++, offset = 0, length = tag >> 2;
        int extra = (int)(tag & 3);
        if (extra == 0) { /* a literal, whose length may take up to four more bytes, low ones first */
            extra = length < 60 ? 0 : (int)length - 59;
            if (end - at < extra)
                return 0;
            if (extra)
                length = 0;
            for (int i = 0; i < extra; i++)
                length |= (uint64_t)at[i] << 8 * i;
            at += extra;
            if (++length > (uint64_t)(end - at))
                return 0;
            at += length;
        } else { /* a copy of earlier output; its offset takes 1, 2 or 4 bytes */
            extra = extra == 3 ? 4 : extra;
            if (end - at < extra)
                return 0;
            for (int i = 0; i < extra; i++)
                offset |= (uint64_t)at[i] << 8 * i;
            at += extra;
            if (extra == 1) {
                offset |= tag >> 5 << 8;
                length = (length & 7) + 4;
            } else
                length++;
            if (offset == 0 || offset > made)
                return 0;
        }
        made += length;
        if (made > total)
            return 0;
    }
    *size += total;
    return made == total;
}

/* Do the same for snappy-java's stream of blocks, or a raw block. */
static int
inspect_snappy_stream(const uint8_t *at, const uint8_t *end, uint64_t *size)
{
    if (end - at < 8 || memcmp(at, "\x82SNAPPY\0", 8) != 0)
        return inspect_snappy(at, end, size);
    for (at += end - at < 16 ? end - at : 16; at < end;) {
        if (end - at < 4)
            return 0;
        uint64_t length = big_endian(at, 4);
        at += 4;
        if (length == 0 || length > (uint64_t)(end - at) || !inspect_snappy(at, at + length, size))
            return 0;
        at += length;
    }
    return 1;
}

/* Whether the records of a whole batch agree with its header, as pylogd.wire.validation.batch_is_valid says. */
static inline int
batch_agrees(const uint8_t *header, Py_ssize_t size, int64_t earliest)
{
    const uint8_t *at = header + BATCH_HEADER, *end = header + size;
    if (size <= BATCH_HEADER + 4)
        return 0;
    Py_ssize_t count = (int32_t)big_endian(header + 57, 4);
    uint64_t total = 0;
    Inspection found;
    switch (header[22] & 7) {
    case 0:
        inspect(at, end, count, (int64_t)big_endian(header + 27, 8), 0, 0, &found, 0);
        return found.problem == NULL && found.newest == (int64_t)big_endian(header + 35, 8)
               && (found.oldest < 0 || found.oldest >= earliest);
    case 1:
        return memcmp(at, "\x1f\x8b\x08", 3) == 0;
    case 2:
        return inspect_snappy_stream(at, end, &total) && count > 0 && total / MIN_RECORD >= (uint64_t)count;
    case 3:
        return memcmp(at, "\x04\x22\x4d\x18", 4) == 0;
    case 4:
        return memcmp(at, "\x28\xb5\x2f\xfd", 4) == 0;
    }
    return 0;
}

#endif
