/* Count the stamps of audited producers in a batch; part of _speedups.c. pylogd.services.audit.batches has the same in Python,
 * and tests/property/test_audit_batches.py compares both.
 *
 * Strategy: rows that follow each other are mostly of the same producer and window. So the group of the last row is
 * compared first; a dictionary has all groups, so that any order of producers takes linear time. Rows with several
 * stamps, and stamps that are not as a producer of this project writes them, are returned as they are.
 */

#define STAMP_DIGITS 18 /* so many always fit into 64 bits */

typedef struct {
    int64_t start;            /* of the window */
    const uint8_t *producer;  /* NULL for rows without stamps */
    const uint8_t *server;
    Py_ssize_t producer_size;
    Py_ssize_t server_size;
    Py_ssize_t rows;
    int64_t least;            /* offset */
    int64_t most;
    uint64_t first;           /* number */
    uint64_t next;            /* behind the last number */
    uint64_t *numbers;        /* NULL as long as they are first, first + 1, ... */
    Py_ssize_t capacity;
} StampGroup;

typedef struct {
    StampGroup *groups;
    Py_ssize_t count;
    Py_ssize_t capacity;
    PyObject *places; /* by the key of a group, its index */
} StampGroups;

/* Read decimal digits up to a slash. Returns what follows, or NULL. */
static const uint8_t *
stamp_number(const uint8_t *at, const uint8_t *end, uint64_t *number)
{
    const uint8_t *begin = at;
    *number = 0;
    while (at < end && at - begin < STAMP_DIGITS && *at >= '0' && *at <= '9')
        *number = *number * 10 + (uint64_t)(*at++ - '0');
    return at == begin || at == end || *at != '/' ? NULL : at + 1;
}

static int
is_ascii(const uint8_t *at, Py_ssize_t size)
{
    uint8_t all = 0;
    for (Py_ssize_t i = 0; i < size; i++)
        all |= at[i];
    return all < 128;
}

/* Parse a stamp into a group and a number. Returns whether it is a usual one, of a time up to `latest`. */
static int
read_stamp(const Header *header, int64_t width, int64_t latest, StampGroup *group, uint64_t *number)
{
    uint64_t time;
    if (header->value == NULL)
        return 0;
    const uint8_t *end = header->value + header->value_size, *at = stamp_number(header->value, end, &time);
    if (at == NULL || (int64_t)time > latest)
        return 0;
    const uint8_t *slash = memchr(at, '/', (size_t)(end - at));
    if (slash == NULL)
        return 0;
    group->start = (int64_t)time - (int64_t)time % width;
    group->producer = at;
    group->producer_size = slash - at;
    if ((at = stamp_number(slash + 1, end, number)) == NULL)
        return 0;
    group->server = at;
    group->server_size = end - at;
    return is_ascii(group->producer, group->producer_size) && is_ascii(group->server, group->server_size);
}

static int
same_group(const StampGroup *one, const StampGroup *two)
{
    if (one->start != two->start || (one->producer == NULL) != (two->producer == NULL))
        return 0;
    return one->producer == NULL
           || (one->producer_size == two->producer_size && one->server_size == two->server_size
               && memcmp(one->producer, two->producer, (size_t)one->producer_size) == 0
               && memcmp(one->server, two->server, (size_t)one->server_size) == 0);
}

/* Return the group that is like another one, made if it is missing. NULL with an exception. */
static StampGroup *
find_group(StampGroups *all, const StampGroup *like)
{
    Py_ssize_t sizes = like->producer_size + like->server_size;
    PyObject *key = PyBytes_FromStringAndSize(NULL, 17 + sizes), *place = NULL;
    if (key == NULL)
        return NULL;
    char *to = PyBytes_AS_STRING(key);
    *to = like->producer != NULL;
    memcpy(to + 1, &like->start, 8);
    memcpy(to + 9, &like->producer_size, 8);
    if (like->producer != NULL) {
        memcpy(to + 17, like->producer, (size_t)like->producer_size);
        memcpy(to + 17 + like->producer_size, like->server, (size_t)like->server_size);
    }
    StampGroup *found = NULL;
    PyObject *known = PyDict_GetItemWithError(all->places, key);
    if (known != NULL) {
        found = &all->groups[PyLong_AsSsize_t(known)];
        goto done;
    }
    if (PyErr_Occurred())
        goto done;
    if (all->count == all->capacity) {
        Py_ssize_t capacity = all->capacity * 2 + 4;
        StampGroup *more = PyMem_Realloc(all->groups, (size_t)capacity * sizeof *more);
        if (more == NULL) {
            PyErr_NoMemory();
            goto done;
        }
        all->groups = more;
        all->capacity = capacity;
    }
    if ((place = PyLong_FromSsize_t(all->count)) != NULL && PyDict_SetItem(all->places, key, place) == 0) {
        found = &all->groups[all->count++];
        *found = *like;
    }
done:
    Py_DECREF(key);
    Py_XDECREF(place);
    return found;
}

/* Add a row. Numbers are kept one by one once they are not consecutive. */
static int
add_row(StampGroup *group, int64_t offset, uint64_t number)
{
    if (!group->rows) {
        group->least = offset; /* offsets ascend */
        group->first = number;
    }
    else if (group->producer != NULL && (group->numbers != NULL || number != group->next)) {
        if (group->rows >= group->capacity) {
            Py_ssize_t capacity = group->rows * 2 + 16;
            uint64_t *more = PyMem_Realloc(group->numbers, (size_t)capacity * sizeof *more);
            if (more == NULL) {
                PyErr_NoMemory();
                return -1;
            }
            for (Py_ssize_t i = 0; group->numbers == NULL && i < group->rows; i++)
                more[i] = group->first + (uint64_t)i;
            group->numbers = more;
            group->capacity = capacity;
        }
        group->numbers[group->rows] = number;
    }
    group->most = offset;
    group->next = number + 1;
    group->rows++;
    return 0;
}

/* The start, producer, server, rows, lowest and highest offset, first number, and numbers if they have gaps. */
static PyObject *
to_group(const StampGroup *group)
{
    PyObject *producer = Py_NewRef(Py_None), *server = Py_NewRef(Py_None);
    if (group->producer != NULL) {
        Py_SETREF(producer, PyUnicode_DecodeASCII((const char *)group->producer, group->producer_size, NULL));
        Py_SETREF(server, PyUnicode_DecodeASCII((const char *)group->server, group->server_size, NULL));
    }
    PyObject *found = NULL;
    if (producer != NULL && server != NULL)
        found = Py_BuildValue("LOOnLLKy#", (long long)group->start, producer, server, group->rows,
                              (long long)group->least, (long long)group->most, (unsigned long long)group->first,
                              (const char *)group->numbers,
                              group->numbers == NULL ? (Py_ssize_t)0 : group->rows * (Py_ssize_t)sizeof(uint64_t));
    Py_XDECREF(producer);
    Py_XDECREF(server);
    return found;
}

/* Append the offset of a row, and the values of its stamps, to a list. */
static int
append_odd(PyObject *odd, const Record *record, int64_t offset, const char *name, Py_ssize_t name_size)
{
    PyObject *values = PyList_New(0), *row = NULL;
    Cursor cursor = record->header;
    int done = -1;
    for (Py_ssize_t i = 0; values != NULL && i < record->headers; i++) {
        Header header;
        if (next_header(&cursor, &header) < 0)
            goto done;
        if (header.key_size != name_size || memcmp(header.key, name, (size_t)name_size) != 0)
            continue;
        PyObject *value = to_bytes(header.value, header.value_size);
        int put = value == NULL ? -1 : PyList_Append(values, value);
        Py_XDECREF(value);
        if (put < 0)
            goto done;
    }
    if (values != NULL && (row = Py_BuildValue("LO", (long long)offset, values)) != NULL)
        done = PyList_Append(odd, row);
done:
    Py_XDECREF(values);
    Py_XDECREF(row);
    return done;
}

PyDoc_STRVAR(count_stamps_doc,
"count_stamps(data, count, first, base_offset, base_timestamp, stamp, name, width, latest, /)\n--\n\n"
"Group the records in data whose offset delta is at least first, by the windows of `width` milliseconds of their stamps,\n"
"which are headers called name. stamp: the time stamp of all records, or None if each has its own. latest: the last\n"
"possible time. Returns the groups, the rows with unusual stamps, the number of rows without a stamp, of those the\n"
"number that have an impossible time stamp, and the last offset delta of all records; see pylogd.services.audit.batches.");

static PyObject *
count_stamps(PyObject *self, PyObject *args)
{
    Py_buffer data;
    Py_ssize_t count, name_size, unstamped = 0, impossible = 0, at = -1;
    long long first, base_offset, base_timestamp, stamp = 0, width, latest;
    const char *name;
    PyObject *given, *odd = NULL, *list = NULL, *result = NULL;
    StampGroups all = {NULL, 0, 0, NULL};
    if (!PyArg_ParseTuple(args, "y*nLLLOy#LL", &data, &count, &first, &base_offset, &base_timestamp, &given, &name,
                          &name_size, &width, &latest))
        return NULL;
    if (width < 1) {
        PyErr_SetString(PyExc_ValueError, "a window has at least a millisecond");
        goto done;
    }
    if (given != Py_None && (stamp = PyLong_AsLongLong(given)) == -1 && PyErr_Occurred())
        goto done;
    if (check_count(count, data.len) < 0 || (odd = PyList_New(0)) == NULL || (all.places = PyDict_New()) == NULL)
        goto done;
    Cursor cursor = {data.buf, (const uint8_t *)data.buf + data.len};
    uint64_t last = 1;
    Record record = {0};
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t offset, time;
        if (next_record(&cursor, &record, &last) < 0)
            goto done;
        if (__builtin_add_overflow((int64_t)base_timestamp, unzigzag(record.stamp), &time)
            || __builtin_add_overflow((int64_t)base_offset, (int64_t)record.delta, &offset)) {
            invalid("an offset or a time stamp has more than 64 bits");
            goto done;
        }
        if ((int64_t)record.delta < first)
            continue;
        StampGroup group = {0};
        uint64_t number = 0;
        Py_ssize_t stamps = 0;
        int usual = 0;
        Cursor headers = record.header;
        for (Py_ssize_t j = 0; j < record.headers; j++) {
            Header header;
            if (next_header(&headers, &header) < 0)
                goto done;
            if (header.key_size == name_size && memcmp(header.key, name, (size_t)name_size) == 0 && ++stamps == 1)
                usual = read_stamp(&header, width, latest, &group, &number);
        }
        if (stamps > 1 || (stamps && !usual)) {
            if (append_odd(odd, &record, offset, name, name_size) < 0)
                goto done;
            continue;
        }
        if (!stamps) {
            time = given == Py_None ? time : stamp;
            unstamped++;
            if (time < 0 || time > latest) {
                impossible++;
                continue;
            }
            group.start = time - time % width;
        }
        if (at < 0 || !same_group(&all.groups[at], &group)) {
            StampGroup *found = find_group(&all, &group);
            if (found == NULL)
                goto done;
            at = found - all.groups;
        }
        if (add_row(&all.groups[at], offset, number) < 0)
            goto done;
    }
    if (cursor.at != cursor.end) {
        invalid("bytes follow the last record of a batch");
        goto done;
    }
    if ((list = PyList_New(all.count)) == NULL)
        goto done;
    for (Py_ssize_t i = 0; i < all.count; i++) {
        PyObject *group = to_group(&all.groups[i]);
        if (group == NULL)
            goto done;
        PyList_SET_ITEM(list, i, group);
    }
    result = Py_BuildValue("OOnnL", list, odd, unstamped, impossible, count ? (long long)record.delta : -1LL);
done:
    for (Py_ssize_t i = 0; i < all.count; i++)
        PyMem_Free(all.groups[i].numbers);
    PyMem_Free(all.groups);
    Py_XDECREF(all.places);
    Py_XDECREF(list);
    Py_XDECREF(odd);
    PyBuffer_Release(&data);
    return result;
}
