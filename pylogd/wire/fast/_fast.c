/* Produce requests of the plain shape, as many as one read has brought: find, check and number their batches, and write
 * the bytes for the log and the responses. Optional: without it, pylogd.wire.fast.request_batch, pylogd.broker.log.append.header_check
 * and pylogd.broker.log.log do the same, and tests/property/test_request_batches.py compares what clients and disks see.
 * Below are two small functions for Fetch requests that repeat the last one: see pylogd.wire.fast.known_fetch.
 *
 * Strategy: a client that goes on as it began repeats the bytes around its records. The first request that differs, and
 * the first batch that is not accepted by its header and a walk over its records, end the run: nothing has been done
 * for it, and Python goes on with it. Two passes: the first finds and checks, and the second, when all sizes are known,
 * writes. Nothing is kept between two calls, and no object is made for a request. Versions differ in how a request
 * says the size of its records, in the empty tagged fields behind them, and in where a response has its offsets.
 *
 * Rules: a length is compared with the bytes that exist before it is used, in 64 bits. What the second pass writes
 * depends on sizes that the first has kept, not on bytes that it reads again, so that no input and no other thread can
 * cause a write out of bounds. The tables of the CRC belong to the module object, so each interpreter has its own.
 */
#include "../_inspect.h"

enum {
    MOST = 256,         /* requests of a run */
    LENGTH = 4,         /* bytes of a request's length, */
    COMMON_AT = 8,      /* and of what is in front of the bytes that requests have in common: API, version, number */
    LARGEST = 16382,    /* bytes of records: what a varint of two bytes can say */
    END_TAGS = 3,       /* bytes behind the records, from FIRST_FLEXIBLE on: no tagged fields */
    ID_END = 8,         /* where the correlation id of a response ends */
    LOG_START = 16,     /* bytes from the base offset to the log start offset */
    FIRST_LOG_START = 5, /* version of Produce whose responses have the latter, */
    FIRST_ZSTD = 7,     /* whose batches may be compressed with zstd, */
    FIRST_ERRORS = 8,   /* whose responses have the errors of records, */
    FIRST_FLEXIBLE = 9, /* that has varints and tagged fields */
    ZSTD = 4,
    RESPONSE_HEAD = 9,  /* length, correlation id, no tagged fields */
    PREFIX = 16,        /* bytes of a batch that the broker writes: base offset, length, leader epoch */
    OVERHEAD = 12,      /* bytes of a batch that its length does not count */
    CRC_FROM = 21,      /* what the CRC of a batch covers */
    REMEMBERED = 5,     /* batches of a producer: see pylogd.broker.log.producers */
    FETCH_ID_AT = 8,    /* the correlation id of a request that has its length in front, */
    FETCH_COMMON_AT = 12,
    FETCH_BODY = 63,    /* bytes of a response between its header and the size of its records, */
    FETCH_OFFSETS = 34, /* and where in them the offsets are */
    FETCH_END = 3,      /* bytes behind the records: no tagged fields */
    TAKEN = 10,         /* what a run has, */
    LIMITS = 7,         /* what limits */
    LOG_STATE = 9,      /* and the state of a log have */
    FETCH_MOST = RESPONSE_HEAD + FETCH_BODY + 5,
};

/* CRC-32C ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    uint32_t crc[8][256]; /* what a byte becomes when 0 to 7 zero bytes follow */
} State;

/* Declare for pylogd.base.compiled which numbers are those of other modules; and the numbers that modules above this one
 * define too: pylogd/broker/api/fast/_repeated.c compares them.
 */
static int
declare(PyObject *module)
{
    PyObject *constants = Py_BuildValue(
        "[(sd)(sd)(sd)]", "pylogd.wire.records:HEADER_SIZE", (double)BATCH_HEADER, "pylogd.wire.records:CRC_START",
        (double)CRC_FROM, "pylogd.wire.records:LENGTH_OVERHEAD", (double)OVERHEAD);
    int failed = constants == NULL || PyModule_AddObjectRef(module, "CONSTANTS", constants) < 0
                 || PyModule_AddIntMacro(module, LIMITS) < 0 || PyModule_AddIntMacro(module, LOG_STATE) < 0
                 || PyModule_AddIntMacro(module, TAKEN) < 0 || PyModule_AddIntMacro(module, REMEMBERED) < 0
                 || PyModule_AddIntMacro(module, PREFIX) < 0 || PyModule_AddIntMacro(module, FETCH_END) < 0;
    Py_XDECREF(constants);
    return failed ? -1 : 0;
}

static int
prepare(PyObject *module)
{
    State *state = PyModule_GetState(module);
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++)
            value = value & 1 ? value >> 1 ^ 0x82F63B78u : value >> 1;
        state->crc[0][byte] = value;
    }
    for (int zeros = 1; zeros < 8; zeros++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = state->crc[zeros - 1][byte];
            state->crc[zeros][byte] = before >> 8 ^ state->crc[0][before & 255];
        }
    return declare(module);
}

static uint32_t
crc_by_tables(const State *state, const uint8_t *at, size_t size)
{
    uint32_t crc = UINT32_MAX;
    for (; size >= 8; at += 8, size -= 8)
        crc = state->crc[7][(crc ^ at[0]) & 255] ^ state->crc[6][(crc >> 8 ^ at[1]) & 255]
              ^ state->crc[5][(crc >> 16 ^ at[2]) & 255] ^ state->crc[4][crc >> 24 ^ at[3]] ^ state->crc[3][at[4]]
              ^ state->crc[2][at[5]] ^ state->crc[1][at[6]] ^ state->crc[0][at[7]];
    for (; size; at++, size--)
        crc = crc >> 8 ^ state->crc[0][(crc ^ *at) & 255];
    return ~crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("sse4.2"))) static uint32_t
crc_by_processor(const uint8_t *at, size_t size)
{
    uint64_t crc = UINT32_MAX;
    for (; size >= 8; at += 8, size -= 8) {
        uint64_t eight;
        memcpy(&eight, at, 8);
        crc = __builtin_ia32_crc32di(crc, eight);
    }
    uint32_t rest = (uint32_t)crc;
    for (; size; at++, size--)
        rest = __builtin_ia32_crc32qi(rest, *at);
    return ~rest;
}

static uint32_t
crc32c(const State *state, const uint8_t *at, size_t size)
{
    return __builtin_cpu_supports("sse4.2") ? crc_by_processor(at, size) : crc_by_tables(state, at, size);
}
#else
#define crc32c crc_by_tables
#endif

PyDoc_STRVAR(checksum_doc, "checksum(data, tables, /)\n--\n\n"
"Return the CRC-32C of data: with tables, as on processors without an instruction for it.");

static PyObject *
checksum(PyObject *self, PyObject *args)
{
    Py_buffer data;
    int tables;
    if (!PyArg_ParseTuple(args, "y*p", &data, &tables))
        return NULL;
    const State *state = PyModule_GetState(self);
    uint32_t found = tables ? crc_by_tables(state, data.buf, (size_t)data.len)
                            : crc32c(state, data.buf, (size_t)data.len);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(found);
}

/* What is passed in ------------------------------------------------------------------------------------------------ */

/* The requests. All have the same `kind` (API and version, and the API is 0) and `common` bytes. */
typedef struct {
    Py_buffer frame; /* the first, without its length; unless all are in the chunk */
    Py_buffer chunk; /* the others, from `at` on */
    int all_in_chunk;
    Py_ssize_t at, most;
    int64_t max_request;
    uint32_t kind;
    const uint8_t *common, *rest; /* rest: of a response, behind its correlation id */
    Py_ssize_t common_size, rest_size, base_offset; /* base_offset: where in the rest it is, counted from its end */
} Requests;

/* Which batches are accepted: see pylogd.broker.log.append.header_check. */
typedef struct {
    int64_t max_bytes, segment_bytes, last_offset, roll_timestamp, before_max_ms, after_max_ms, highest_codec;
} Limits;
_Static_assert(sizeof(Limits) == LIMITS * sizeof(int64_t), "LIMITS are the numbers of Limits");

/* What the log is when the first batch comes. */
typedef struct {
    int64_t position, offset, leader_epoch, now_ms, log_start;
    int64_t index_interval, since_index, max_timestamp, max_timestamp_offset;
} Log;
_Static_assert(sizeof(Log) == LOG_STATE * sizeof(int64_t), "LOG_STATE are the numbers of Log");

/* A batch that was found, and accepted. */
typedef struct {
    const uint8_t *records;
    Py_ssize_t size;
    uint32_t correlation_id;
    int32_t delta, sequence;
    int16_t epoch;
    int64_t newest, producer;
} Found;

static int
read_numbers(PyObject *tuple, int64_t *numbers, Py_ssize_t count, const char *name)
{
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != count) {
        PyErr_Format(PyExc_TypeError, "%s must be a tuple of %zd numbers", name, count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        numbers[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
        if (numbers[i] == -1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

/* Return where the base offset is in a response for one partition without an error, counted from its end. */
static Py_ssize_t
base_offset_of(uint32_t version)
{
    if (version >= FIRST_FLEXIBLE)
        return 33;
    return version >= FIRST_ERRORS ? 34 : version >= FIRST_LOG_START ? 28 : 20;
}

/* Read (kind, common, rest), which the caller keeps alive. */
static int
read_shape(PyObject *shape, Requests *requests)
{
    if (!PyTuple_Check(shape) || PyTuple_GET_SIZE(shape) != 3 || !PyBytes_Check(PyTuple_GET_ITEM(shape, 1))
        || !PyBytes_Check(PyTuple_GET_ITEM(shape, 2))) {
        PyErr_SetString(PyExc_TypeError, "a shape is (API and version, common bytes, rest of a response)");
        return -1;
    }
    long long kind = PyLong_AsLongLong(PyTuple_GET_ITEM(shape, 0));
    if (kind == -1 && PyErr_Occurred())
        return -1;
    requests->kind = (uint32_t)kind;
    requests->base_offset = base_offset_of(requests->kind);
    if (PyBytes_GET_SIZE(PyTuple_GET_ITEM(shape, 2)) < requests->base_offset) {
        PyErr_SetString(PyExc_ValueError, "the rest of a response is too short for its version");
        return -1;
    }
    requests->common = (const uint8_t *)PyBytes_AS_STRING(PyTuple_GET_ITEM(shape, 1));
    requests->common_size = PyBytes_GET_SIZE(PyTuple_GET_ITEM(shape, 1));
    requests->rest = (const uint8_t *)PyBytes_AS_STRING(PyTuple_GET_ITEM(shape, 2));
    requests->rest_size = PyBytes_GET_SIZE(PyTuple_GET_ITEM(shape, 2));
    return 0;
}

/* Finding ---------------------------------------------------------------------------------------------------------- */

/* Find the records in the request of `size` bytes at `at`. Return whether it has the shape of the others. */
static inline int
find_records(const Requests *requests, const uint8_t *at, Py_ssize_t size, Found *found)
{
    Py_ssize_t start = COMMON_AT + requests->common_size, length, end = size;
    if (size < start + 4 || (uint32_t)big_endian(at, 4) != requests->kind
        || memcmp(at + COMMON_AT, requests->common, (size_t)requests->common_size) != 0)
        return 0;
    if (requests->kind < FIRST_FLEXIBLE) {
        length = (int32_t)big_endian(at + start, 4);
        start += 4;
    } else {
        length = at[start++]; /* a varint of one or two bytes: one more than the records have */
        if (length >= 128) {
            if (at[start] >= 128)
                return 0;
            length = (length & 127) | (Py_ssize_t)at[start++] << 7;
        }
        length--;
        end -= END_TAGS;
    }
    if (length < 0 || length > LARGEST || start + length != end
        || memcmp(at + end, "\0\0\0", (size_t)(size - end)) != 0)
        return 0;
    found->correlation_id = (uint32_t)big_endian(at + 4, 4);
    found->records = at + start;
    found->size = length;
    return 1;
}

/* Find the next request in the chunk, behind position `*at`, which is moved behind it. Return whether there is one. */
static inline int
find_next(const Requests *requests, Py_ssize_t *at, Found *found)
{
    const uint8_t *chunk = requests->chunk.buf;
    Py_ssize_t left = requests->chunk.len - *at;
    if (left < LENGTH)
        return 0;
    int64_t length = (int32_t)big_endian(chunk + *at, 4);
    if (length < 0 || length > requests->max_request || length > left - LENGTH
        || !find_records(requests, chunk + *at + LENGTH, (Py_ssize_t)length, found))
        return 0;
    *at += LENGTH + (Py_ssize_t)length;
    return 1;
}

/* Checking --------------------------------------------------------------------------------------------------------- */

static inline int64_t
saturated(int64_t value, int64_t added)
{
    int64_t sum;
    if (!__builtin_add_overflow(value, added, &sum))
        return sum;
    return added < 0 ? INT64_MIN : INT64_MAX;
}

/* Return whether the log may take a batch as its next, as pylogd.broker.log.append.header_check.FastAccept.check does. */
static inline int
accepts(const State *state, const Limits *limits, const Log *log, Found *found)
{
    const uint8_t *at = found->records;
    if (found->size < BATCH_HEADER || found->size > limits->max_bytes
        || found->size > limits->segment_bytes - log->position)
        return 0;
    int64_t first = (int64_t)big_endian(at + 27, 8), attributes = (int16_t)big_endian(at + 21, 2);
    found->delta = (int32_t)big_endian(at + 23, 4);
    found->newest = (int64_t)big_endian(at + 35, 8);
    found->producer = (int64_t)big_endian(at + 43, 8);
    found->epoch = (int16_t)big_endian(at + 51, 2);
    found->sequence = (int32_t)big_endian(at + 53, 4);
    return big_endian(at, 8) == 0 && (int64_t)(int32_t)big_endian(at + 8, 4) + OVERHEAD == found->size && at[16] == 2
           && attributes >= 0 && attributes <= limits->highest_codec && found->delta >= 0
           && (int64_t)(int32_t)big_endian(at + 57, 4) == (int64_t)found->delta + 1 && first >= 0
           && first <= found->newest && found->newest <= saturated(log->now_ms, limits->after_max_ms)
           && found->newest <= limits->roll_timestamp && log->offset <= limits->last_offset - found->delta
           && log->offset < INT64_MAX - found->delta
           && (found->producer == -1 || (found->sequence >= 0 && found->epoch >= 0 && found->producer >= 0))
           && crc32c(state, at + CRC_FROM, (size_t)found->size - CRC_FROM) == (uint32_t)big_endian(at + 17, 4)
           && batch_agrees(at, found->size, saturated(log->now_ms, -limits->before_max_ms));
}

/* Which batch an idempotent one has to continue, if any was accepted: producer, epoch and sequence number. */
typedef struct {
    int64_t producer;
    int32_t sequence;
    int16_t epoch;
} Due;

/* Return whether a batch continues its producer's sequence, or has none; -1 with an exception. */
static inline int
is_due(PyObject *producers_due, Due *due, const Found *found, Py_ssize_t accepted)
{
    if (found->producer < 0)
        return 1;
    if (due->producer != found->producer || due->epoch != found->epoch || due->sequence != found->sequence) {
        if (accepted)
            return 0;
        PyObject *answer = PyObject_CallFunction(producers_due, "Lii", (long long)found->producer, (int)found->epoch,
                                                 (int)found->sequence);
        int yes = answer == NULL ? -1 : PyObject_IsTrue(answer);
        Py_XDECREF(answer);
        if (yes <= 0)
            return yes;
    }
    due->producer = found->producer;
    due->epoch = found->epoch;
    due->sequence = (int32_t)(((uint32_t)found->sequence + (uint32_t)found->delta + 1) & INT32_MAX);
    return 1;
}

/* Writing ---------------------------------------------------------------------------------------------------------- */

static inline uint8_t *
put(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--, value >>= 8)
        at[i] = (uint8_t)value;
    return at + bytes;
}

/* Return the bytes that go to the log. */
static PyObject *
encode_batches(const Found *found, Py_ssize_t count, Py_ssize_t size, const Log *log)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, size);
    if (bytes == NULL)
        return NULL;
    uint8_t *at = (uint8_t *)PyBytes_AS_STRING(bytes);
    int64_t offset = log->offset;
    for (; count; found++, count--) {
        at = put(at, (uint64_t)offset, 8);
        at = put(at, (uint64_t)(found->size - OVERHEAD), 4);
        at = put(at, (uint64_t)log->leader_epoch, 4);
        memcpy(at, found->records + PREFIX, (size_t)found->size - PREFIX);
        at += found->size - PREFIX;
        offset += (int64_t)found->delta + 1;
    }
    return bytes;
}

/* Return the responses, with length and header. */
static PyObject *
encode_responses(const Requests *requests, const Found *found, Py_ssize_t count, const Log *log)
{
    Py_ssize_t size = requests->rest_size + ID_END;
    PyObject *bytes = size > PY_SSIZE_T_MAX / MOST ? PyErr_NoMemory() : PyBytes_FromStringAndSize(NULL, size * count);
    if (bytes == NULL)
        return NULL;
    uint8_t *at = (uint8_t *)PyBytes_AS_STRING(bytes);
    int64_t offset = log->offset;
    for (; count; found++, count--) {
        put(put(at, (uint64_t)(size - LENGTH), 4), found->correlation_id, 4);
        memcpy(at + ID_END, requests->rest, (size_t)requests->rest_size);
        at += size;
        put(at - requests->base_offset, (uint64_t)offset, 8);
        if (requests->kind >= FIRST_LOG_START)
            put(at - requests->base_offset + LOG_START, (uint64_t)log->log_start, 8);
        offset += (int64_t)found->delta + 1;
    }
    return bytes;
}

/* Move the log behind the batches, and return the entries of its indexes that are due meanwhile, as
 * pylogd.broker.log.segment.Segment.note_batch would make them.
 */
static PyObject *
note_batches(const Found *found, Py_ssize_t count, Log *log)
{
    PyObject *entries = PyList_New(0);
    for (; entries != NULL && count; found++, count--) {
        int64_t last = log->offset + found->delta;
        if (found->newest > log->max_timestamp) {
            log->max_timestamp = found->newest;
            log->max_timestamp_offset = last;
        }
        if (log->since_index > log->index_interval) {
            PyObject *entry = Py_BuildValue("LLLL", (long long)last, (long long)log->position,
                                            (long long)log->max_timestamp, (long long)log->max_timestamp_offset);
            if (entry == NULL || PyList_Append(entries, entry) < 0)
                Py_CLEAR(entries);
            Py_XDECREF(entry);
            log->since_index = 0;
        }
        log->since_index += found->size;
        log->position += found->size;
        log->offset = last + 1;
    }
    return entries;
}

/* Return what `Producers.wrote` takes for each of the last batches of the one producer, if there is one. */
static PyObject *
last_batches(const Found *found, Py_ssize_t count, int64_t offset)
{
    PyObject *batches = PyList_New(0);
    Py_ssize_t numbered = 0;
    for (Py_ssize_t i = 0; i < count; i++)
        numbered += found[i].producer >= 0;
    for (; batches != NULL && count && numbered; found++, count--) {
        if (found->producer >= 0 && numbered-- <= REMEMBERED) {
            PyObject *batch = Py_BuildValue("LiiiLL", (long long)found->producer, (int)found->epoch,
                                            (int)found->sequence, (int)found->delta, (long long)offset,
                                            (long long)found->newest);
            if (batch == NULL || PyList_Append(batches, batch) < 0)
                Py_CLEAR(batches);
            Py_XDECREF(batch);
        }
        offset += (int64_t)found->delta + 1;
    }
    return batches;
}

/* Return a run: see pylogd.broker.log.append.commit.Taken. */
static PyObject *
encode_run(const Requests *requests, const Found *found, Py_ssize_t count, Py_ssize_t end, Py_ssize_t size, Log log)
{
    PyObject *data = encode_batches(found, count, size, &log);
    PyObject *replies = encode_responses(requests, found, count, &log);
    PyObject *batches = last_batches(found, count, log.offset);
    PyObject *entries = note_batches(found, count, &log), *run = PyTuple_New(TAKEN);
    PyObject *parts[] = {
        PyLong_FromSsize_t(count), PyLong_FromSsize_t(end), data, replies, PyLong_FromLongLong(log.offset),
        PyLong_FromLongLong(log.since_index), PyLong_FromLongLong(log.max_timestamp),
        PyLong_FromLongLong(log.max_timestamp_offset), entries, batches,
    };
    int complete = run != NULL;
    for (int i = 0; i < TAKEN; i++) {
        complete = complete && parts[i] != NULL;
        if (run != NULL)
            PyTuple_SET_ITEM(run, i, parts[i]);
        else
            Py_XDECREF(parts[i]);
    }
    if (!complete)
        Py_CLEAR(run);
    return run;
}

/* Functions -------------------------------------------------------------------------------------------------------- */

/* Find and check the requests. Return the run of those that were accepted, or None. */
static PyObject *
take_run(const State *state, const Requests *requests, const Limits *limits, const Log *log, PyObject *producers_due)
{
    Found found[MOST];
    Due due = {-1, 0, 0};
    Log next = *log;
    Py_ssize_t count = 0, at = requests->at, end = 0;
    int there = requests->all_in_chunk ? find_next(requests, &at, found)
                                       : find_records(requests, requests->frame.buf, requests->frame.len, found);
    while (there && accepts(state, limits, &next, found + count)) {
        int yes = is_due(producers_due, &due, found + count, count);
        if (yes < 0)
            return NULL;
        if (!yes)
            break;
        next.position += found[count].size;
        next.offset += (int64_t)found[count].delta + 1;
        end = count || requests->all_in_chunk ? at : 0;
        there = ++count < requests->most && find_next(requests, &at, found + count);
    }
    if (!count)
        Py_RETURN_NONE;
    return encode_run(requests, found, count, end, (Py_ssize_t)(next.position - log->position), *log);
}

PyDoc_STRVAR(take_requests_doc,
"take_requests(frame, chunk, at, most, max_request, shape, limits, log, due, /)\n--\n\n"
"As pylogd.wire.fast.compiled.KnownShape.requests says. frame: None if all requests are in chunk.");

static PyObject *
take_requests(PyObject *self, PyObject *const *args, Py_ssize_t number)
{
    Requests requests;
    Limits limits;
    Log log;
    PyObject *run = NULL;
    if (number != 9) {
        PyErr_SetString(PyExc_TypeError, "take_requests takes 9 arguments");
        return NULL;
    }
    requests.all_in_chunk = args[0] == Py_None;
    requests.at = PyLong_AsSsize_t(args[2]);
    requests.most = PyLong_AsSsize_t(args[3]);
    requests.max_request = PyLong_AsLongLong(args[4]);
    if (PyErr_Occurred() || read_shape(args[5], &requests) < 0
        || read_numbers(args[6], (int64_t *)&limits, LIMITS, "limits") < 0
        || read_numbers(args[7], (int64_t *)&log, LOG_STATE, "log") < 0
        || (!requests.all_in_chunk && PyObject_GetBuffer(args[0], &requests.frame, PyBUF_SIMPLE) < 0))
        return NULL;
    if (PyObject_GetBuffer(args[1], &requests.chunk, PyBUF_SIMPLE) == 0) {
        if (requests.at < 0 || requests.at > requests.chunk.len || requests.most > MOST || log.position < 0
            || log.offset < 0 || limits.before_max_ms < 0)
            PyErr_SetString(PyExc_ValueError, "a position, a number or a limit is out of range");
        else {
            if (requests.kind < FIRST_ZSTD && limits.highest_codec >= ZSTD)
                limits.highest_codec = ZSTD - 1;
            run = take_run(PyModule_GetState(self), &requests, &limits, &log, args[8]);
        }
        PyBuffer_Release(&requests.chunk);
    }
    if (!requests.all_in_chunk)
        PyBuffer_Release(&requests.frame);
    return run;
}

PyDoc_STRVAR(matches_doc, "matches(frame, shape, /)\n--\n\n"
"Return whether a request has the API, version and common bytes of a shape.");

static PyObject *
matches(PyObject *self, PyObject *const *args, Py_ssize_t number)
{
    Requests requests;
    if (number != 2) {
        PyErr_SetString(PyExc_TypeError, "matches takes a request and a shape");
        return NULL;
    }
    if (read_shape(args[1], &requests) < 0 || PyObject_GetBuffer(args[0], &requests.frame, PyBUF_SIMPLE) < 0)
        return NULL;
    const uint8_t *at = requests.frame.buf;
    int same = requests.frame.len >= COMMON_AT + requests.common_size && (uint32_t)big_endian(at, 4) == requests.kind
               && memcmp(at + COMMON_AT, requests.common, (size_t)requests.common_size) == 0;
    PyBuffer_Release(&requests.frame);
    return PyBool_FromLong(same);
}

/* Fetch requests --------------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(fetch_offset_doc, "fetch_offset(known, at, data, /)\n--\n\n"
"Return the fetch offset, at position `at`, of a request that repeats the bytes of a known one but for that and the\n"
"correlation id; -1 if it does not, or if its offset is negative. Both have their lengths in front.");

static PyObject *
fetch_offset(PyObject *self, PyObject *const *args, Py_ssize_t number)
{
    if (number != 3 || !PyBytes_Check(args[0]) || !PyBytes_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "fetch_offset takes a request, a position and another request");
        return NULL;
    }
    const uint8_t *known = (const uint8_t *)PyBytes_AS_STRING(args[0]);
    const uint8_t *data = (const uint8_t *)PyBytes_AS_STRING(args[2]);
    Py_ssize_t size = PyBytes_GET_SIZE(args[0]), at = PyLong_AsSsize_t(args[1]);
    if (at == -1 && PyErr_Occurred())
        return NULL;
    if (at < FETCH_COMMON_AT || at > size - 8) {
        PyErr_SetString(PyExc_ValueError, "the position is out of range");
        return NULL;
    }
    if (size != PyBytes_GET_SIZE(args[2]) || memcmp(data, known, FETCH_ID_AT) != 0
        || memcmp(data + FETCH_COMMON_AT, known + FETCH_COMMON_AT, (size_t)(at - FETCH_COMMON_AT)) != 0
        || memcmp(data + at + 8, known + at + 8, (size_t)(size - at - 8)) != 0)
        return PyLong_FromLong(-1);
    int64_t offset = (int64_t)big_endian(data + at, 8);
    return PyLong_FromLongLong(offset < 0 ? -1 : offset);
}

PyDoc_STRVAR(fetch_head_doc, "fetch_head(body, data, high_watermark, last_stable_offset, log_start, size, /)\n--\n\n"
"Return what is in front of the records, `size` bytes, in the response to a request; `FETCH_END` follows them.\n\n"
"body: from behind the header up to the records, with any numbers in place of those that are passed.");

static PyObject *
fetch_head(PyObject *self, PyObject *const *args, Py_ssize_t number)
{
    if (number != 6 || !PyBytes_Check(args[0]) || PyBytes_GET_SIZE(args[0]) != FETCH_BODY
        || !PyBytes_Check(args[1]) || PyBytes_GET_SIZE(args[1]) < FETCH_COMMON_AT) {
        PyErr_SetString(PyExc_TypeError, "fetch_head takes the body of a response, a request, and four numbers");
        return NULL;
    }
    int64_t numbers[4];
    for (int i = 0; i < 4; i++) {
        numbers[i] = PyLong_AsLongLong(args[i + 2]);
        if (numbers[i] == -1 && PyErr_Occurred())
            return NULL;
    }
    int64_t size = numbers[3];
    if (size < 0 || size > INT32_MAX - FETCH_MOST) {
        PyErr_SetString(PyExc_ValueError, "the size is out of range");
        return NULL;
    }
    uint8_t head[FETCH_MOST], *at = head + RESPONSE_HEAD;
    memcpy(at, PyBytes_AS_STRING(args[0]), FETCH_BODY);
    for (int i = 0; i < 3; i++)
        put(at + FETCH_OFFSETS + 8 * i, (uint64_t)numbers[i], 8);
    at += FETCH_BODY;
    uint32_t left = (uint32_t)size + 1;
    for (; left >= 128; left >>= 7)
        *at++ = (uint8_t)(left | 128);
    *at++ = (uint8_t)left;
    put(head, (uint64_t)(at - head - LENGTH + size + FETCH_END), LENGTH);
    memcpy(head + LENGTH, PyBytes_AS_STRING(args[1]) + FETCH_ID_AT, 4);
    head[RESPONSE_HEAD - 1] = 0;
    return PyBytes_FromStringAndSize((char *)head, at - head);
}

/* The module ------------------------------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"take_requests", (PyCFunction)(void (*)(void))take_requests, METH_FASTCALL, take_requests_doc},
    {"matches", (PyCFunction)(void (*)(void))matches, METH_FASTCALL, matches_doc},
    {"fetch_offset", (PyCFunction)(void (*)(void))fetch_offset, METH_FASTCALL, fetch_offset_doc},
    {"fetch_head", (PyCFunction)(void (*)(void))fetch_head, METH_FASTCALL, fetch_head_doc},
    {"checksum", checksum, METH_VARARGS, checksum_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, prepare},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* it changes nothing that another thread can see */
#endif
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_fast", "Produce and Fetch requests of the plain shape.", sizeof(State), methods,
    slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__fast(void)
{
    return PyModuleDef_Init(&module);
}
