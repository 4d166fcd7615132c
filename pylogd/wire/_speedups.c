/* Compiled loops over records, keys and rows. Optional: pylogd.wire.records, pylogd.wire.validation,
 * pylogd.wire.timestamps, pylogd.client.core.consumer.columns, pylogd.client.core.producer.partitioner,
 * pylogd.client.core.producer.columns and pylogd.services.audit.batches have the same in Python;
 * tests/property/test_speedups.py, test_validation.py, test_row_batches.py and test_audit_batches.py compare both on
 * arbitrary bytes.
 *
 * Strategy: one parser, next_record, which checks every length against the bytes that exist before it uses it; decoding
 * and columns walk records with it. Malformed records raise InvalidRecordBatch. The sizes of output buffers, which the
 * caller passes, are checked too, so that no input can cause a read or write out of bounds.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "_inspect.h"

static PyObject *invalid_record_batch; /* the exception's type */

/* CRC-32C without its data (in Python: pylogd.wire.crc) ------------------------------------------------------------ */

#define CRC_POLYNOMIAL 0x82F63B78u /* reflected */
#define CRC_SQUARES 66             /* of x: up to 2 ** 66, which 8 * 2 ** 63 bits need */

/* x ** (2 ** n) modulo the polynomial, for each n; the highest bit of a number stands for x ** 0 */
static uint32_t crc_squares[CRC_SQUARES];

static uint32_t
crc_multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = 1u << 31; a != 0; bit >>= 1) {
        if (a & bit) {
            product ^= b;
            a ^= bit;
        }
        b = b & 1 ? b >> 1 ^ CRC_POLYNOMIAL : b >> 1;
    }
    return product;
}

static void
crc_prepare(void)
{
    crc_squares[0] = 1u << 30; /* x */
    for (int n = 1; n < CRC_SQUARES; n++)
        crc_squares[n] = crc_multiply(crc_squares[n - 1], crc_squares[n - 1]);
}

PyDoc_STRVAR(append_zeros_doc, "append_zeros(value, size, /)\n--\n\n"
    "What a CRC-32C without initial and final inversion becomes when so many zero bytes follow (zlib's crc32_combine).");

static PyObject *
append_zeros(PyObject *self, PyObject *args)
{
    unsigned int value;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "In", &value, &size))
        return NULL;
    if (size < 0) {
        PyErr_SetString(PyExc_ValueError, "a number of bytes is not negative");
        return NULL;
    }
    uint32_t result = value;
    for (int n = 3; size != 0; n++, size >>= 1)
        if (size & 1)
            result = crc_multiply(crc_squares[n], result);
    return PyLong_FromUnsignedLong(result);
}

/* Parsing ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} Cursor;

typedef struct {
    uint64_t stamp;         /* relative to the batch's base time stamp; zig-zag encoded */
    uint64_t delta;         /* relative to its base offset */
    const uint8_t *key;     /* NULL for null, like value */
    const uint8_t *value;
    Py_ssize_t key_size;
    Py_ssize_t value_size;
    Py_ssize_t headers;     /* their number */
    Cursor header;          /* the position of the first */
} Record;

typedef struct {
    const uint8_t *key;
    const uint8_t *value;
    Py_ssize_t key_size;
    Py_ssize_t value_size;
} Header;

static int
invalid(const char *text)
{
    PyErr_SetString(invalid_record_batch, text);
    return -1;
}

/* Read a varint of at most 64 bits, without decoding zig-zag. */
static inline int
read_varint(Cursor *cursor, uint64_t *value)
{
    const uint8_t *at = cursor->at;
    uint64_t result = 0;
    for (int shift = 0; shift <= 63; shift += 7) {
        if (at >= cursor->end)
            return invalid("a record extends past the end of its batch");
        uint8_t byte = *at++;
        result |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 128) {
            if (shift == 63 && byte > 1)
                return invalid("a varint has more than 64 bits");
            cursor->at = at;
            *value = result;
            return 0;
        }
    }
    return invalid("a varint has more than ten bytes");
}

/* Read a length and that many bytes. The length -1, which is 1 in zig-zag encoding, is null. */
static inline int
read_sized(Cursor *cursor, const uint8_t **start, Py_ssize_t *size)
{
    uint64_t length;
    if (read_varint(cursor, &length) < 0)
        return -1;
    if (length == 1) {
        *start = NULL;
        *size = 0;
        return 0;
    }
    if (length & 1 || length >> 1 > (uint64_t)(cursor->end - cursor->at))
        return invalid("a field has a negative length or extends past the end of its batch");
    *start = cursor->at;
    *size = (Py_ssize_t)(length >> 1);
    cursor->at += *size;
    return 0;
}

static inline int
next_header(Cursor *cursor, Header *header)
{
    if (read_sized(cursor, &header->key, &header->key_size) < 0)
        return -1;
    if (header->key == NULL)
        return invalid("a header has no key");
    return read_sized(cursor, &header->value, &header->value_size);
}

/* Read a record. `last`: the offset delta of the record before it, zig-zag encoded; 1 for the first record. */
static inline int
next_record(Cursor *cursor, Record *record, uint64_t *last)
{
    uint64_t length, count;
    if (read_varint(cursor, &length) < 0)
        return -1;
    if (length >> 1 > (uint64_t)(cursor->end - cursor->at) || length < 2)
        return invalid("a record extends past the end of its batch");
    const uint8_t *end = cursor->at + (length >> 1);
    cursor->at++; /* attributes, which are unused */
    if (read_varint(cursor, &record->stamp) < 0 || read_varint(cursor, &record->delta) < 0)
        return -1;
    if (record->delta & 1 || (!(*last & 1) && record->delta <= *last))
        return invalid("the offsets in a batch don't ascend");
    *last = record->delta;
    record->delta >>= 1;
    if (read_sized(cursor, &record->key, &record->key_size) < 0
        || read_sized(cursor, &record->value, &record->value_size) < 0 || read_varint(cursor, &count) < 0)
        return -1;
    if (count & 1 || count > (uint64_t)(cursor->end - cursor->at))
        return invalid("a record has an impossible number of headers");
    record->headers = (Py_ssize_t)(count >> 1);
    record->header = *cursor;
    for (Py_ssize_t i = 0; i < record->headers; i++) {
        Header header;
        if (next_header(cursor, &header) < 0)
            return -1;
    }
    return cursor->at == end ? 0 : invalid("a record has another length than its fields");
}

static int
check_count(Py_ssize_t count, Py_ssize_t size)
{
    if (count < 0 || count > size / 7)
        return invalid("a batch has an impossible number of records");
    return 0;
}

/* Objects ---------------------------------------------------------------------------------------------------------- */

static PyObject *
to_bytes(const uint8_t *start, Py_ssize_t size)
{
    if (start == NULL)
        Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)start, size);
}

/* Return base + delta, which may need more than 64 bits. */
static PyObject *
to_sum(int64_t base, int64_t delta)
{
    int64_t sum;
    if (!__builtin_add_overflow(base, delta, &sum))
        return PyLong_FromLongLong(sum);
    PyObject *left = PyLong_FromLongLong(base), *right = PyLong_FromLongLong(delta), *result = NULL;
    if (left != NULL && right != NULL)
        result = PyNumber_Add(left, right);
    Py_XDECREF(left);
    Py_XDECREF(right);
    return result;
}

static PyObject *
to_headers(const Record *record)
{
    PyObject *headers = PyTuple_New(record->headers);
    Cursor cursor = record->header;
    for (Py_ssize_t i = 0; headers != NULL && i < record->headers; i++) {
        Header header;
        PyObject *pair = NULL, *key = NULL, *value = NULL;
        if (next_header(&cursor, &header) == 0) {
            key = PyUnicode_DecodeUTF8((const char *)header.key, header.key_size, "surrogateescape");
            value = to_bytes(header.value, header.value_size);
            if (key != NULL && value != NULL)
                pair = PyTuple_Pack(2, key, value);
        }
        Py_XDECREF(key);
        Py_XDECREF(value);
        if (pair == NULL)
            Py_CLEAR(headers);
        else
            PyTuple_SET_ITEM(headers, i, pair);
    }
    return headers;
}

PyDoc_STRVAR(decode_records_doc,
"decode_records(data, count, base_offset, base_timestamp, topic, partition, type, stamp, /)\n--\n\n"
"Decode the count records that fill data into objects of type, a subclass of tuple. stamp: the time stamp of all\n"
"records, or None if each has its own.");

static PyObject *
decode_records(PyObject *self, PyObject *args)
{
    Py_buffer data;
    Py_ssize_t count;
    long long base_offset, base_timestamp;
    PyObject *topic, *partition, *stamp, *empty = NULL, *list = NULL;
    PyObject *time; /* of the last record: records that follow each other often have the same */
    PyTypeObject *type;
    if (!PyArg_ParseTuple(args, "y*nLLOOO!O", &data, &count, &base_offset, &base_timestamp, &topic, &partition,
                          &PyType_Type, &type, &stamp))
        return NULL;
    int own_times = stamp == Py_None;
    uint64_t time_delta = 0;
    time = own_times ? NULL : Py_NewRef(stamp);
    if (!PyType_IsSubtype(type, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "type must be a subclass of tuple");
        goto done;
    }
    if (check_count(count, data.len) < 0 || (empty = PyTuple_New(0)) == NULL || (list = PyList_New(count)) == NULL)
        goto done;
    Cursor cursor = {data.buf, (const uint8_t *)data.buf + data.len};
    uint64_t last = 1;
    for (Py_ssize_t i = 0; i < count; i++) {
        Record record;
        PyObject *object;
        if (next_record(&cursor, &record, &last) < 0 || (object = type->tp_alloc(type, 7)) == NULL)
            goto failed;
        PyList_SET_ITEM(list, i, object);
        PyTuple_SET_ITEM(object, 0, Py_NewRef(topic));
        PyTuple_SET_ITEM(object, 1, Py_NewRef(partition));
        PyTuple_SET_ITEM(object, 2, to_sum(base_offset, (int64_t)record.delta));
        if (own_times && (time == NULL || record.stamp != time_delta)) {
            time_delta = record.stamp;
            Py_XSETREF(time, to_sum(base_timestamp, unzigzag(record.stamp)));
        }
        PyTuple_SET_ITEM(object, 3, Py_XNewRef(time));
        PyTuple_SET_ITEM(object, 4, to_bytes(record.key, record.key_size));
        PyTuple_SET_ITEM(object, 5, to_bytes(record.value, record.value_size));
        PyTuple_SET_ITEM(object, 6, record.headers ? to_headers(&record) : Py_NewRef(empty));
        if (PyErr_Occurred())
            goto failed;
        PyObject_GC_UnTrack(object); /* its fields can't form a cycle, so the collector need not visit it */
    }
    if (cursor.at == cursor.end)
        goto done;
    invalid("bytes follow the last record of a batch");
failed:
    Py_CLEAR(list);
done:
    Py_XDECREF(time);
    Py_XDECREF(empty);
    PyBuffer_Release(&data);
    return list;
}

/* Columns ---------------------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(measure_doc,
"measure(data, count, first, base_timestamp, /)\n--\n\n"
"Measure the records in data whose offset delta is at least first. Returns their number, the bytes of their keys and\n"
"values, the numbers of null keys and null values, the number of headers, the bytes of the headers' keys and values,\n"
"and the last offset delta of all records.");

static PyObject *
measure(PyObject *self, PyObject *args)
{
    Py_buffer data;
    Py_ssize_t count;
    long long first, base_timestamp;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y*nLL", &data, &count, &first, &base_timestamp))
        return NULL;
    int64_t time;
    Py_ssize_t rows = 0, keys = 0, values = 0, no_key = 0, no_value = 0, headers = 0, header_keys = 0, header_values = 0;
    Cursor cursor = {data.buf, (const uint8_t *)data.buf + data.len};
    uint64_t last = 1;
    Record record = {0};
    if (check_count(count, data.len) < 0)
        goto done;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (next_record(&cursor, &record, &last) < 0)
            goto done;
        if (__builtin_add_overflow((int64_t)base_timestamp, unzigzag(record.stamp), &time)) {
            invalid("a time stamp has more than 64 bits");
            goto done;
        }
        if ((int64_t)record.delta < first)
            continue;
        rows++;
        keys += record.key_size;
        values += record.value_size;
        no_key += record.key == NULL;
        no_value += record.value == NULL;
        headers += record.headers;
        for (Py_ssize_t j = 0; j < record.headers; j++) {
            Header header;
            if (next_header(&record.header, &header) < 0)
                goto done;
            header_keys += header.key_size;
            header_values += header.value_size;
        }
    }
    if (cursor.at != cursor.end)
        invalid("bytes follow the last record of a batch");
    else
        result = Py_BuildValue("nnnnnnnnL", rows, keys, values, no_key, no_value, headers, header_keys, header_values,
                               count ? (long long)record.delta : -1LL);
done:
    PyBuffer_Release(&data);
    return result;
}

/* A column of byte strings under construction, in Arrow's layout of `binary`. */
typedef struct {
    Py_buffer ends;  /* int32, one more than rows; the first is 0 */
    Py_buffer valid; /* a bit for each row: 1 if it is not null; all 0 at first */
    Py_buffer bytes;
} Strings;

static int
put_string(Strings *column, Py_ssize_t row, const uint8_t *start, Py_ssize_t size)
{
    int32_t *ends = column->ends.buf;
    if (row < 0 || row >= column->ends.len / 4 - 1 || row / 8 >= column->valid.len)
        return invalid("more records than were counted");
    int32_t at = ends[row];
    if (at < 0 || size > column->bytes.len - at)
        return invalid("more bytes than were counted");
    if (start != NULL) {
        memcpy((uint8_t *)column->bytes.buf + at, start, size);
        ((uint8_t *)column->valid.buf)[row / 8] |= (uint8_t)(1 << row % 8);
    }
    ends[row + 1] = at + (int32_t)size;
    return 0;
}

static void
release_strings(Strings *column)
{
    PyBuffer_Release(&column->ends);
    PyBuffer_Release(&column->valid);
    PyBuffer_Release(&column->bytes);
}

PyDoc_STRVAR(fill_doc,
"fill(data, count, first, base_offset, base_timestamp, stamp, row, offsets, timestamps, key_ends, key_valid, keys,\n"
"     value_ends, value_valid, values, /)\n--\n\n"
"Write the records that measure counted into columns, beginning with row. Returns the row after the last one.\n"
"stamp: the time stamp of all records, or None if each has its own.");

static PyObject *
fill(PyObject *self, PyObject *args)
{
    Py_buffer data, offsets, timestamps;
    Strings keys, values;
    Py_ssize_t count, row;
    long long first, base_offset, base_timestamp, stamp = 0;
    PyObject *given, *result = NULL;
    if (!PyArg_ParseTuple(args, "y*nLLLOnw*w*w*w*w*w*w*w*", &data, &count, &first, &base_offset, &base_timestamp, &given,
                          &row, &offsets, &timestamps, &keys.ends, &keys.valid, &keys.bytes, &values.ends,
                          &values.valid, &values.bytes))
        return NULL;
    if (given != Py_None && (stamp = PyLong_AsLongLong(given)) == -1 && PyErr_Occurred())
        goto done;
    Cursor cursor = {data.buf, (const uint8_t *)data.buf + data.len};
    uint64_t last = 1;
    for (Py_ssize_t i = 0; i < count; i++) {
        Record record;
        if (next_record(&cursor, &record, &last) < 0)
            goto done;
        if ((int64_t)record.delta < first)
            continue;
        if (put_string(&keys, row, record.key, record.key_size) < 0
            || put_string(&values, row, record.value, record.value_size) < 0)
            goto done;
        int64_t offset, time = stamp;
        if (__builtin_add_overflow((int64_t)base_offset, (int64_t)record.delta, &offset)
            || (given == Py_None && __builtin_add_overflow((int64_t)base_timestamp, unzigzag(record.stamp), &time))
            || (row + 1) * 8 > offsets.len || (row + 1) * 8 > timestamps.len) {
            invalid("an offset or a time stamp has more than 64 bits");
            goto done;
        }
        ((int64_t *)offsets.buf)[row] = offset;
        ((int64_t *)timestamps.buf)[row] = time;
        row++;
    }
    result = PyLong_FromSsize_t(row);
done:
    PyBuffer_Release(&data);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&timestamps);
    release_strings(&keys);
    release_strings(&values);
    return result;
}

PyDoc_STRVAR(fill_headers_doc,
"fill_headers(data, count, first, row, list_ends, key_ends, key_valid, keys, value_ends, value_valid, values, /)\n--\n\n"
"Write the headers of the records that measure counted into columns, beginning with row. list_ends: for each row, the\n"
"number of headers of all rows up to it. Returns the row after the last one.");

static PyObject *
fill_headers(PyObject *self, PyObject *args)
{
    Py_buffer data, list_ends;
    Strings keys, values;
    Py_ssize_t count, row;
    long long first;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y*nLnw*w*w*w*w*w*w*", &data, &count, &first, &row, &list_ends, &keys.ends, &keys.valid,
                          &keys.bytes, &values.ends, &values.valid, &values.bytes))
        return NULL;
    Cursor cursor = {data.buf, (const uint8_t *)data.buf + data.len};
    uint64_t last = 1;
    int32_t *ends = list_ends.buf;
    for (Py_ssize_t i = 0; i < count; i++) {
        Record record;
        if (next_record(&cursor, &record, &last) < 0)
            goto done;
        if ((int64_t)record.delta < first)
            continue;
        if (row < 0 || row >= list_ends.len / 4 - 1) {
            invalid("more records than were counted");
            goto done;
        }
        int32_t at = ends[row];
        for (Py_ssize_t j = 0; j < record.headers; j++, at++) {
            Header header;
            if (next_header(&record.header, &header) < 0
                || put_string(&keys, at, header.key, header.key_size) < 0
                || put_string(&values, at, header.value, header.value_size) < 0)
                goto done;
        }
        ends[++row] = at;
    }
    result = PyLong_FromSsize_t(row);
done:
    PyBuffer_Release(&data);
    PyBuffer_Release(&list_ends);
    release_strings(&keys);
    release_strings(&values);
    return result;
}

/* Stamps of audited producers -------------------------------------------------------------------------------------- */

#include "_stamps.h"

/* Validation ------------------------------------------------------------------------------------------------------- */

static PyObject *
to_places(const int32_t *places, Py_ssize_t count)
{
    PyObject *list = PyList_New(count < MAX_PLACES ? count : MAX_PLACES);
    for (Py_ssize_t i = 0; list != NULL && i < PyList_GET_SIZE(list); i++) {
        PyObject *place = PyLong_FromLong(places[i]);
        if (place == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, place);
    }
    return list;
}

PyDoc_STRVAR(inspect_records_doc,
"inspect_records(data, count, base_timestamp, earliest, latest, /)\n--\n\n"
"Walk over the count records in data. Returns the fields of pylogd.wire.validation.Inspection.");

static PyObject *
inspect_records(PyObject *self, PyObject *args)
{
    Py_buffer data;
    Py_ssize_t count;
    long long base_timestamp, earliest, latest;
    PyObject *result = NULL, *keyless = NULL, *untimely = NULL;
    if (!PyArg_ParseTuple(args, "y*nLLL", &data, &count, &base_timestamp, &earliest, &latest))
        return NULL;
    Inspection *found = PyMem_Malloc(sizeof *found);
    if (found == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    PyThreadState *state = data.len >= LONG_WALK ? PyEval_SaveThread() : NULL;
    inspect(data.buf, (const uint8_t *)data.buf + data.len, count, base_timestamp, earliest, latest, found, 1);
    if (state != NULL)
        PyEval_RestoreThread(state);
    if ((keyless = to_places(found->keyless_at, found->keyless)) == NULL
        || (untimely = to_places(found->untimely_at, found->untimely)) == NULL)
        goto done;
    result = Py_BuildValue("nzLLnOnO", found->good, found->problem, (long long)found->oldest, (long long)found->newest,
                           found->keyless, keyless, found->untimely, untimely);
done:
    Py_XDECREF(keyless);
    Py_XDECREF(untimely);
    PyMem_Free(found);
    PyBuffer_Release(&data);
    return result;
}

/* Find the first record from an offset delta on with a time stamp of at least `least`; with `largest`, the first with
 * the largest time stamp of those. Returns whether there is one, or -1 if the records are malformed.
 */
static int
search(const uint8_t *at, const uint8_t *end, Py_ssize_t count, int64_t base, int64_t least, uint64_t from_delta,
       int largest, int64_t *time, uint64_t *delta)
{
    int found = 0;
    for (; count > 0; count--) {
        uint64_t length, stamp, ahead;
        int64_t when;
        if (take(&at, end, LONG_BYTES, &length) != NULL || length & 1 || length < 2
            || length >> 1 > (uint64_t)(end - at))
            return -1;
        const uint8_t *stop = at + (length >> 1);
        at++; /* attributes */
        if (take(&at, stop, LONG_BYTES, &stamp) != NULL || take(&at, stop, LONG_BYTES, &ahead) != NULL || ahead & 1
            || __builtin_add_overflow(base, unzigzag(stamp), &when))
            return -1;
        at = stop;
        ahead >>= 1;
        if (ahead < from_delta || when < least || (found && when <= *time))
            continue;
        found = 1;
        *time = when;
        *delta = ahead;
        if (!largest)
            break;
    }
    return found;
}

PyDoc_STRVAR(search_timestamps_doc,
"search_timestamps(data, count, base_timestamp, least, from_delta, largest, /)\n--\n\n"
"As pylogd.wire.timestamps.search_timestamps.");

static PyObject *
search_timestamps(PyObject *self, PyObject *args)
{
    Py_buffer data;
    Py_ssize_t count;
    long long base, least, from_delta;
    int largest, found = -1;
    int64_t time = 0;
    uint64_t delta = 0;
    if (!PyArg_ParseTuple(args, "y*nLLLp", &data, &count, &base, &least, &from_delta, &largest))
        return NULL;
    if (count >= 0 && count <= data.len / MIN_RECORD) {
        PyThreadState *state = data.len >= LONG_WALK ? PyEval_SaveThread() : NULL;
        found = search(data.buf, (const uint8_t *)data.buf + data.len, count, base, least,
                       from_delta > 0 ? (uint64_t)from_delta : 0, largest, &time, &delta);
        if (state != NULL)
            PyEval_RestoreThread(state);
    }
    PyBuffer_Release(&data);
    if (found < 0) {
        invalid("a record is malformed");
        return NULL;
    }
    if (!found)
        Py_RETURN_NONE;
    return Py_BuildValue("LK", (long long)time, (unsigned long long)delta);
}

PyDoc_STRVAR(batch_is_valid_doc,
"batch_is_valid(batch, earliest, /)\n--\n\n"
"Return whether the records of a batch agree with its header; see pylogd.wire.validation.");

static PyObject *
batch_is_valid(PyObject *self, PyObject *const *args, Py_ssize_t number)
{
    Py_buffer view;
    long long earliest;
    if (number != 2) {
        PyErr_SetString(PyExc_TypeError, "batch_is_valid takes a batch and a time");
        return NULL;
    }
    earliest = PyLong_AsLongLong(args[1]);
    if ((earliest == -1 && PyErr_Occurred()) || PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0)
        return NULL;
    int valid = batch_agrees(view.buf, view.len, earliest);
    PyBuffer_Release(&view);
    return PyBool_FromLong(valid);
}

PyDoc_STRVAR(skip_batches_doc,
"skip_batches(window, offset, beyond, /)\n--\n\n"
"Return the position of the first batch that ends at or after `offset` and behind byte `beyond`; the window begins\n"
"with a batch. Or that of the first whose length is invalid, or whose header is not whole.");

static PyObject *
skip_batches(PyObject *self, PyObject *const *args, Py_ssize_t number)
{
    Py_buffer view;
    if (number != 3) {
        PyErr_SetString(PyExc_TypeError, "skip_batches takes a window, an offset and a position");
        return NULL;
    }
    long long offset = PyLong_AsLongLong(args[1]), beyond = PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred() || PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0)
        return NULL;
    const uint8_t *window = view.buf;
    int64_t at = 0;
    while (at <= view.len - BATCH_HEADER) {
        int64_t length = (int32_t)big_endian(window + at + 8, 4), last;
        if (length <= 0 || __builtin_add_overflow((int64_t)big_endian(window + at, 8),
                                                  (int64_t)(int32_t)big_endian(window + at + 23, 4), &last)
            || (last >= offset && at + length + 12 > beyond))
            break;
        at += length + 12;
    }
    PyBuffer_Release(&view);
    return PyLong_FromLongLong(at);
}

/* Encoding --------------------------------------------------------------------------------------------------------- */

typedef struct {
    uint8_t *start;
    Py_ssize_t size;
    Py_ssize_t capacity;
} Output;

static int
reserve(Output *output, Py_ssize_t more)
{
    if (more <= output->capacity - output->size)
        return 0;
    Py_ssize_t capacity = output->capacity + output->capacity / 2 + more;
    uint8_t *start = PyMem_Realloc(output->start, (size_t)capacity);
    if (start == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    output->start = start;
    output->capacity = capacity;
    return 0;
}

/* Write a varint. The caller has reserved ten bytes. */
static inline void
put_varint(Output *output, int64_t value)
{
    uint64_t rest = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    while (rest > 127) {
        output->start[output->size++] = (uint8_t)(rest | 0x80);
        rest >>= 7;
    }
    output->start[output->size++] = (uint8_t)rest;
}

/* Bytes behind their length. */
static int
put_bytes(Output *output, const void *bytes, Py_ssize_t size)
{
    if (reserve(output, 10 + size) < 0)
        return -1;
    put_varint(output, size);
    memcpy(output->start + output->size, bytes, (size_t)size);
    output->size += size;
    return 0;
}

/* The length and the bytes of an object with a buffer; None is null. */
static int
put_sized(Output *output, PyObject *object)
{
    Py_buffer view;
    if (object == Py_None) {
        if (reserve(output, 10) < 0)
            return -1;
        put_varint(output, -1);
        return 0;
    }
    if (PyBytes_CheckExact(object))
        return put_bytes(output, PyBytes_AS_STRING(object), PyBytes_GET_SIZE(object));
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) < 0)
        return -1;
    int done = put_bytes(output, view.buf, view.len);
    PyBuffer_Release(&view);
    return done;
}

/* The length and the UTF-8 of a str. */
static int
put_text(Output *output, PyObject *text)
{
    if (PyUnicode_Check(text) && PyUnicode_IS_COMPACT_ASCII(text))
        return put_bytes(output, PyUnicode_1BYTE_DATA(text), PyUnicode_GET_LENGTH(text));
    PyObject *encoded = PyUnicode_AsEncodedString(text, "utf-8", "surrogateescape");
    if (encoded == NULL)
        return -1;
    int put = put_sized(output, encoded);
    Py_DECREF(encoded);
    return put;
}

static int
put_headers(Output *output, PyObject *headers)
{
    if (PyBytes_CheckExact(headers)) { /* encoded already */
        Py_ssize_t size = PyBytes_GET_SIZE(headers);
        if (reserve(output, size) < 0)
            return -1;
        memcpy(output->start + output->size, PyBytes_AS_STRING(headers), (size_t)size);
        output->size += size;
        return 0;
    }
    PyObject *all = PySequence_Tuple(headers);
    int done = -1;
    if (all == NULL || reserve(output, 10) < 0)
        goto done;
    put_varint(output, PyTuple_GET_SIZE(all));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(all); i++) {
        PyObject *pair = PySequence_Tuple(PyTuple_GET_ITEM(all, i));
        int put = -1;
        if (pair != NULL && PyTuple_GET_SIZE(pair) != 2)
            PyErr_SetString(PyExc_ValueError, "a header is a pair");
        else if (pair != NULL)
            put = put_text(output, PyTuple_GET_ITEM(pair, 0)) < 0 ? -1 : put_sized(output, PyTuple_GET_ITEM(pair, 1));
        Py_XDECREF(pair);
        if (put < 0)
            goto done;
    }
    done = 0;
done:
    Py_XDECREF(all);
    return done;
}

/* Write a record after ten reserved bytes, then write its length and move the record up to it. */
static int
put_record(Output *output, PyObject *record, Py_ssize_t index, int64_t base_timestamp)
{
    PyObject *fields = PySequence_Tuple(record);
    int done = -1, has_headers;
    if (fields == NULL)
        return -1;
    if (PyTuple_GET_SIZE(fields) != 4) {
        PyErr_SetString(PyExc_ValueError, "a record must have a key, a value, a time stamp and headers");
        goto done;
    }
    PyObject *headers = PyTuple_GET_ITEM(fields, 3);
    long long timestamp = PyLong_AsLongLong(PyTuple_GET_ITEM(fields, 2));
    if ((timestamp == -1 && PyErr_Occurred()) || reserve(output, 40) < 0 || (has_headers = PyObject_IsTrue(headers)) < 0)
        goto done;
    Py_ssize_t gap = output->size;
    output->size += 10;
    output->start[output->size++] = 0; /* attributes */
    put_varint(output, (int64_t)((uint64_t)timestamp - (uint64_t)base_timestamp));
    put_varint(output, index);
    if (put_sized(output, PyTuple_GET_ITEM(fields, 0)) < 0 || put_sized(output, PyTuple_GET_ITEM(fields, 1)) < 0
        || reserve(output, 1) < 0)
        goto done;
    if (!has_headers)
        output->start[output->size++] = 0;
    else if (put_headers(output, headers) < 0)
        goto done;
    Py_ssize_t size = output->size - gap - 10;
    output->size = gap;
    put_varint(output, size);
    memmove(output->start + output->size, output->start + gap + 10, (size_t)size);
    output->size += size;
    done = 0;
done:
    Py_DECREF(fields);
    return done;
}

PyDoc_STRVAR(encode_records_doc,
"encode_records(records, base_timestamp, /)\n--\n\n"
"Encode the records of a batch, (key, value, timestamp, headers) each, without the header and compression.");

static PyObject *
encode_records(PyObject *self, PyObject *args)
{
    PyObject *records, *result = NULL;
    long long base_timestamp;
    Output output = {NULL, 0, 0};
    if (!PyArg_ParseTuple(args, "OL", &records, &base_timestamp)
        || (records = PySequence_Tuple(records)) == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(records); i++)
        if (put_record(&output, PyTuple_GET_ITEM(records, i), i, base_timestamp) < 0)
            goto done;
    result = PyBytes_FromStringAndSize((const char *)output.start, output.size);
done:
    PyMem_Free(output.start);
    Py_DECREF(records);
    return result;
}

PyDoc_STRVAR(encode_headers_doc,
"encode_headers(headers, /)\n--\n\n"
"Headers, (key, value) each, as they stand in a record.");

static PyObject *
encode_headers(PyObject *self, PyObject *headers)
{
    Output output = {NULL, 0, 0};
    PyObject *result = NULL;
    if (reserve(&output, 128) == 0 && put_headers(&output, headers) == 0)
        result = PyBytes_FromStringAndSize((const char *)output.start, output.size);
    PyMem_Free(output.start);
    return result;
}

static inline uint32_t
murmur2_of(const uint8_t *at, Py_ssize_t size)
{
    const uint32_t m = 0x5bd1e995;
    const uint8_t *end = at + size;
    uint32_t hash = 0x9747b28c ^ (uint32_t)size;
    for (; end - at >= 4; at += 4) {
        uint32_t k = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        k *= m;
        k = (k ^ k >> 24) * m;
        hash = hash * m ^ k;
    }
    if (at < end) {
        for (Py_ssize_t i = 0; i < end - at; i++)
            hash ^= (uint32_t)at[i] << 8 * i;
        hash *= m;
    }
    hash = (hash ^ hash >> 13) * m;
    return hash ^ hash >> 15;
}

PyDoc_STRVAR(murmur2_doc, "murmur2(data, /)\n--\n\nMurmurHash2 of 32 bits, unsigned, with the seed of Kafka's Java client.");

static PyObject *
murmur2(PyObject *self, PyObject *data)
{
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    uint32_t hash = murmur2_of(view.buf, view.len);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(hash);
}

/* Rows of columns -------------------------------------------------------------------------------------------------- */

/* A column of byte strings, or of lists, in Arrow's layout. It may be missing: then all rows are null. */
typedef struct {
    Py_buffer valid; /* a bit for each row; no buffer if no row is null */
    Py_buffer ends;  /* int32, one more than rows: where in bytes each row begins, and the last one ends */
    Py_buffer bytes; /* not of lists, whose ends count the rows of other columns */
    Py_ssize_t offset; /* of the first row, in valid and ends */
    Py_ssize_t rows;
    int missing;
} Column;

static void
release_column(Column *column)
{
    PyBuffer_Release(&column->valid);
    PyBuffer_Release(&column->ends);
    PyBuffer_Release(&column->bytes);
}

static int
bad_column(void)
{
    PyErr_SetString(PyExc_ValueError, "a column's buffers do not hold its rows");
    return -1;
}

/* Take a column from (valid, ends, bytes, offset, rows), or None; `column` is all zero before. */
static int
take_column(PyObject *given, Column *column)
{
    column->missing = given == Py_None;
    if (column->missing)
        return 0;
    if (!PyTuple_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "a column must be a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(given, "z*z*z*nn", &column->valid, &column->ends, &column->bytes, &column->offset,
                          &column->rows)) {
        memset(column, 0, sizeof *column); /* what was parsed is released already */
        return -1;
    }
    Py_ssize_t offset = column->offset, rows = column->rows;
    if (offset < 0 || rows < 0 || offset > INT32_MAX || rows > INT32_MAX)
        return bad_column();
    if (rows && ((offset + rows + 1) * 4 > column->ends.len
                 || (column->valid.buf != NULL && (offset + rows + 7) / 8 > column->valid.len)))
        return bad_column();
    return 0;
}

/* Find a row's bytes, or its range of rows if `most` is the number of those: NULL for null. -1 if they don't exist. */
static inline int
range_of(const Column *column, Py_ssize_t row, Py_ssize_t most, Py_ssize_t *start, Py_ssize_t *size)
{
    *start = -1;
    *size = 0;
    if (column->missing)
        return 0;
    if (row < 0 || row >= column->rows)
        return -1;
    row += column->offset;
    if (column->valid.buf != NULL && !(((const uint8_t *)column->valid.buf)[row / 8] >> row % 8 & 1))
        return 0;
    const int32_t *ends = column->ends.buf;
    int32_t from = ends[row], to = ends[row + 1];
    if (from < 0 || to < from || to > most)
        return -1;
    *start = from;
    *size = to - from;
    return 0;
}

PyDoc_STRVAR(group_rows_doc,
"group_rows(rows, groups, given, key, /)\n--\n\n"
"Group rows by partition. given: (valid, int32 numbers, offset) with the groups of rows, or None; a row without one is\n"
"in the group murmur2(key) % groups; one without a key in the group `groups`. Returns the rows in the order of their\n"
"groups, as bytes of int32, and a list with the end of each of the groups + 1. Raises ValueError.");

static PyObject *
group_rows(PyObject *self, PyObject *args)
{
    Py_ssize_t rows, groups, offset = 0;
    PyObject *given, *key, *order = NULL, *ends = NULL, *result = NULL;
    Py_buffer valid = {0}, numbers = {0};
    Column keys = {0};
    int32_t *group_of = NULL;
    Py_ssize_t *next = NULL;
    if (!PyArg_ParseTuple(args, "nnOO", &rows, &groups, &given, &key))
        return NULL;
    if (rows < 0 || rows > INT32_MAX || groups < 1 || groups >= INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "impossible numbers of rows or groups");
        return NULL;
    }
    if (given != Py_None && (!PyTuple_Check(given) || !PyArg_ParseTuple(given, "z*y*n", &valid, &numbers, &offset))) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "given must be a tuple");
        return NULL;
    }
    if (given != Py_None
        && (offset < 0 || offset > INT32_MAX || (offset + rows) * 4 > numbers.len
            || (valid.buf != NULL && (offset + rows + 7) / 8 > valid.len))) {
        bad_column();
        goto done;
    }
    if (take_column(key, &keys) < 0)
        goto done;
    if (!keys.missing && keys.rows < rows) {
        bad_column();
        goto done;
    }
    group_of = PyMem_Malloc((size_t)(rows ? rows : 1) * sizeof *group_of);
    next = PyMem_Calloc((size_t)groups + 2, sizeof *next);
    order = PyBytes_FromStringAndSize(NULL, rows * 4);
    ends = PyList_New(groups + 1);
    if (group_of == NULL || next == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    if (order == NULL || ends == NULL)
        goto done;
    const uint8_t *bits = valid.buf;
    const int32_t *number = numbers.buf;
    for (Py_ssize_t i = 0; i < rows; i++) {
        Py_ssize_t group = groups, at = offset + i, start, size;
        if (number != NULL && (bits == NULL || bits[at / 8] >> at % 8 & 1)) {
            group = number[at];
            if (group < 0 || group >= groups) {
                PyErr_SetString(PyExc_ValueError, "there is no such group");
                goto done;
            }
        } else if (range_of(&keys, i, keys.bytes.len, &start, &size) < 0) {
            bad_column();
            goto done;
        } else if (start >= 0)
            group = (murmur2_of((const uint8_t *)keys.bytes.buf + start, size) & 0x7fffffff) % (uint32_t)groups;
        group_of[i] = (int32_t)group;
        next[group + 1]++;
    }
    for (Py_ssize_t group = 0; group <= groups; group++) {
        next[group + 1] += next[group];
        PyObject *end = PyLong_FromSsize_t(next[group + 1]);
        if (end == NULL)
            goto done;
        PyList_SET_ITEM(ends, group, end);
    }
    int32_t *place = (int32_t *)PyBytes_AS_STRING(order);
    for (Py_ssize_t i = 0; i < rows; i++)
        place[next[group_of[i]]++] = (int32_t)i;
    result = PyTuple_Pack(2, order, ends);
done:
    Py_XDECREF(order);
    Py_XDECREF(ends);
    PyMem_Free(group_of);
    PyMem_Free(next);
    release_column(&keys);
    PyBuffer_Release(&valid);
    PyBuffer_Release(&numbers);
    return result;
}

/* The columns of records: `headers` is one of lists, whose items are the rows of header_keys and header_values. `stamps`
 * has a time stamp for each row; without it all are those of their batch.
 */
typedef struct {
    Column keys, values, headers, header_keys, header_values;
    Py_buffer stamps;
} Rows;

static inline int64_t
stamp_of(const Rows *rows, Py_ssize_t row)
{
    return rows->stamps.buf == NULL ? 0 : ((const int64_t *)rows->stamps.buf)[row];
}

static inline Py_ssize_t
varint_size(int64_t value)
{
    uint64_t rest = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    Py_ssize_t size = 1;
    for (; rest > 127; rest >>= 7)
        size++;
    return size;
}

/* The size of a row's bytes with their length; write them too if there is an output. -1 if they don't exist. */
static inline Py_ssize_t
put_cell(const Column *column, Py_ssize_t row, Output *output)
{
    Py_ssize_t start, size;
    if (range_of(column, row, column->bytes.len, &start, &size) < 0)
        return -1;
    if (output != NULL) {
        put_varint(output, start < 0 ? -1 : size);
        if (size)
            memcpy(output->start + output->size, (const uint8_t *)column->bytes.buf + start, (size_t)size);
        output->size += size;
    }
    return varint_size(start < 0 ? -1 : size) + size;
}

/* The size of a row's headers with their number; write them too if there is an output. -1 if they don't exist, or one
 * has no key.
 */
static Py_ssize_t
put_row_headers(const Rows *rows, Py_ssize_t row, Output *output)
{
    Py_ssize_t first, count, size;
    if (range_of(&rows->headers, row, rows->header_keys.rows, &first, &count) < 0)
        return -1;
    if (output != NULL)
        put_varint(output, count);
    size = varint_size(count);
    for (Py_ssize_t i = first; i < first + count; i++) {
        Py_ssize_t start, key, value;
        if (range_of(&rows->header_keys, i, rows->header_keys.bytes.len, &start, &key) < 0 || start < 0
            || (key = put_cell(&rows->header_keys, i, output)) < 0
            || (value = put_cell(&rows->header_values, i, output)) < 0)
            return -1;
        size += key + value;
    }
    return size;
}

/* The size of a record behind its length; write it too if there is an output. -1 if its bytes don't exist. `delta`: of
 * its time stamp.
 */
static inline Py_ssize_t
put_row(const Rows *rows, Py_ssize_t row, Py_ssize_t index, int64_t delta, Output *output)
{
    Py_ssize_t key, value, headers = 1;
    if (output != NULL) {
        output->start[output->size++] = 0; /* attributes */
        put_varint(output, delta);
        put_varint(output, index);
    }
    if ((key = put_cell(&rows->keys, row, output)) < 0 || (value = put_cell(&rows->values, row, output)) < 0)
        return -1;
    if (!rows->headers.missing) {
        if ((headers = put_row_headers(rows, row, output)) < 0)
            return -1;
    } else if (output != NULL)
        output->start[output->size++] = 0;
    return 1 + varint_size(delta) + varint_size(index) + key + value + headers;
}

/* How much later a row is than the first of its batch; -1 if it has no time stamp. It wraps around as encode_records. */
static inline int
delta_of(const Rows *rows, Py_ssize_t row, int64_t base, int64_t *delta)
{
    *delta = 0;
    if (rows->stamps.buf == NULL)
        return 0;
    if (row < 0 || row >= rows->stamps.len / 8)
        return -1;
    *delta = (int64_t)((uint64_t)stamp_of(rows, row) - (uint64_t)base);
    return 0;
}

/* Count the records of rows that fit into so many bytes, at least one, with their bytes and their latest time stamp; -1
 * if their bytes don't exist.
 */
static Py_ssize_t
measure_rows(const Rows *rows, const int32_t *order, Py_ssize_t most, Py_ssize_t most_bytes, Py_ssize_t *bytes,
             int64_t *latest)
{
    Py_ssize_t count = 0;
    int64_t delta, base = 0;
    if (delta_of(rows, order[0], 0, &base) < 0)
        return -1;
    for (*bytes = 0, *latest = base; count < most; count++) {
        if (delta_of(rows, order[count], base, &delta) < 0)
            return -1;
        Py_ssize_t size = put_row(rows, order[count], count, delta, NULL);
        if (size < 0 || size > INT32_MAX)
            return -1;
        size += varint_size(size);
        if (count && size > most_bytes - *bytes)
            break;
        *bytes += size;
        if (stamp_of(rows, order[count]) > *latest)
            *latest = stamp_of(rows, order[count]);
    }
    return count;
}

PyDoc_STRVAR(encode_rows_doc,
"encode_rows(order, first, stop, max_bytes, columns, stamps, /)\n--\n\n"
"Encode records of the rows order[first:stop], of which there is at least one, until they take max_bytes. order: bytes\n"
"of int32. columns: those of keys, values, lists of headers, keys and values of headers, each (valid, ends, bytes,\n"
"offset, rows) in Arrow's layout, or None. stamps: bytes of int64, a time stamp for each row, or None: then all records\n"
"have that of their batch. Returns the records, where to go on, and the first and the latest time stamp, 0 without any.\n"
"Raises ValueError.");

static PyObject *
encode_rows(PyObject *self, PyObject *args)
{
    Py_buffer order;
    Py_ssize_t first, stop, most_bytes, bytes = 0;
    int64_t latest = 0, delta = 0;
    PyObject *given[5], *result = NULL, *encoded = NULL;
    Rows rows = {0};
    Column *columns[] = {&rows.keys, &rows.values, &rows.headers, &rows.header_keys, &rows.header_values};
    if (!PyArg_ParseTuple(args, "y*nnn(OOOOO)z*", &order, &first, &stop, &most_bytes, &given[0], &given[1], &given[2],
                          &given[3], &given[4], &rows.stamps))
        return NULL;
    for (int i = 0; i < 5; i++)
        if (take_column(given[i], columns[i]) < 0)
            goto done;
    if (first < 0 || first >= stop || stop > order.len / 4 || rows.header_keys.rows != rows.header_values.rows) {
        bad_column();
        goto done;
    }
    const int32_t *at = (const int32_t *)order.buf + first;
    PyThreadState *state = PyEval_SaveThread();
    Py_ssize_t count = measure_rows(&rows, at, stop - first, most_bytes, &bytes, &latest);
    PyEval_RestoreThread(state);
    if (count < 0) {
        bad_column();
        goto done;
    }
    if ((encoded = PyBytes_FromStringAndSize(NULL, bytes)) == NULL)
        goto done;
    Output output = {(uint8_t *)PyBytes_AS_STRING(encoded), 0, bytes};
    int64_t base = stamp_of(&rows, at[0]);
    state = PyEval_SaveThread();
    for (Py_ssize_t i = 0; i < count; i++) {
        delta_of(&rows, at[i], base, &delta);
        put_varint(&output, put_row(&rows, at[i], i, delta, NULL));
        put_row(&rows, at[i], i, delta, &output);
    }
    PyEval_RestoreThread(state);
    result = Py_BuildValue("OnLL", encoded, first + count, (long long)base, (long long)latest);
done:
    Py_XDECREF(encoded);
    for (int i = 0; i < 5; i++)
        release_column(columns[i]);
    PyBuffer_Release(&rows.stamps);
    PyBuffer_Release(&order);
    return result;
}

/* The module ------------------------------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"append_zeros", append_zeros, METH_VARARGS, append_zeros_doc},
    {"decode_records", decode_records, METH_VARARGS, decode_records_doc},
    {"measure", measure, METH_VARARGS, measure_doc},
    {"fill", fill, METH_VARARGS, fill_doc},
    {"fill_headers", fill_headers, METH_VARARGS, fill_headers_doc},
    {"count_stamps", count_stamps, METH_VARARGS, count_stamps_doc},
    {"encode_records", encode_records, METH_VARARGS, encode_records_doc},
    {"encode_headers", encode_headers, METH_O, encode_headers_doc},
    {"inspect_records", inspect_records, METH_VARARGS, inspect_records_doc},
    {"search_timestamps", search_timestamps, METH_VARARGS, search_timestamps_doc},
    {"batch_is_valid", (PyCFunction)(void (*)(void))batch_is_valid, METH_FASTCALL, batch_is_valid_doc},
    {"skip_batches", (PyCFunction)(void (*)(void))skip_batches, METH_FASTCALL, skip_batches_doc},
    {"murmur2", murmur2, METH_O, murmur2_doc},
    {"group_rows", group_rows, METH_VARARGS, group_rows_doc},
    {"encode_rows", encode_rows, METH_VARARGS, encode_rows_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_speedups", "Compiled loops over records.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__speedups(void)
{
    crc_prepare();
    PyObject *exceptions = PyImport_ImportModule("pylogd.wire.exceptions");
    if (exceptions == NULL)
        return NULL;
    invalid_record_batch = PyObject_GetAttrString(exceptions, "InvalidRecordBatch");
    Py_DECREF(exceptions);
    return invalid_record_batch == NULL ? NULL : PyModule_Create(&module);
}
