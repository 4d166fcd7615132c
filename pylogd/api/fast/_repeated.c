/* Answer a Fetch request that repeats the last one of its connection: pylogd.api.fast.fetch.answer_repeated without the
 * interpreter. Optional; tests/property/test_repeated_fetches.py compares both.
 *
 * Strategy: the same steps on the same objects, which are asked for attributes as Python would ask them; and, where the
 * sender allows it, the call that sends head and records (`FileSystem.send_resident`).
 *
 * Rules: whatever is not as usual, any exception included, is left to the function in Python, which begins anew: until
 * the answer is certain, nothing is changed here. Only then it is counted, and sent.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

enum { FETCH = 1, END_SIZE = 3 }; /* the API's key; bytes behind the records, which are zero */

/* What there is in pylogd.wire.fast.known_fetch.KnownFetch.compiled, and in pylogd.log.reading.KeptSlice. */
enum { OFFSET_IN, RESPONSE_HEAD, KEY, LEADER_EPOCH, COMMITTED, LIMIT, LEAST, KNOWN_SIZE };
enum { KEPT_LIMIT, BEHIND, RECORDS, SIZE, ZEROS, SEND, POSITION, KEPT_SIZE };

#define NAMES(X) \
    X(known_fetch) X(compiled) X(authorizer) X(led_log) X(leader_epoch) X(high_watermark) X(last_stable_offset) \
    X(fetches) X(fetched_bytes) X(producers) X(unstable) X(active) X(_view) X(slices) X(log_start_offset) X(closed) \
    X(read) X(end_offset) X(aborted_in) X(length) X(socket) X(direct_above) X(max_chunk) X(authorize) X(principal) \
    X(host) X(topic) X(file) X(fd)

#define DECLARE(name) PyObject *name;
typedef struct {
    NAMES(DECLARE)
    PyObject *end, *read_keywords;
} State;

static int
prepare(PyObject *module)
{
    State *state = PyModule_GetState(module);
#define INTERN(name) \
    if ((state->name = PyUnicode_InternFromString(#name)) == NULL) \
        return -1;
    NAMES(INTERN)
    state->end = PyBytes_FromStringAndSize("\0\0\0", END_SIZE);
    state->read_keywords = PyTuple_Pack(1, state->end_offset);
    return state->end == NULL || state->read_keywords == NULL ? -1 : 0;
}

static int
clear_state(PyObject *module)
{
    State *state = PyModule_GetState(module);
#define FORGET(name) Py_CLEAR(state->name);
    NAMES(FORGET)
    Py_CLEAR(state->end);
    Py_CLEAR(state->read_keywords);
    return 0;
}

static void
free_state(void *module)
{
    clear_state(module);
}

/* What an answer is made of. All are references of our own, or NULL. kept: what the log remembers of the records. */
typedef struct {
    PyObject *known, *offset, *partition, *log, *start, *end, *stable, *kept, *records, *head;
} Answer;

static void
forget(Answer *answer)
{
    Py_XDECREF(answer->known);
    Py_XDECREF(answer->offset);
    Py_XDECREF(answer->partition);
    Py_XDECREF(answer->log);
    Py_XDECREF(answer->start);
    Py_XDECREF(answer->end);
    Py_XDECREF(answer->stable);
    Py_XDECREF(answer->kept);
    Py_XDECREF(answer->records);
    Py_XDECREF(answer->head);
}

/* Attributes. Whoever gets 0 may find an exception to be set ---------------------------------------------------------- */

/* Read an attribute that is a number. Return whether there is one. */
static int
read_number(PyObject *of, PyObject *name, int64_t *value)
{
    PyObject *found = PyObject_GetAttr(of, name);
    if (found == NULL)
        return 0;
    *value = PyLong_AsLongLong(found);
    Py_DECREF(found);
    return *value != -1 || !PyErr_Occurred();
}

/* Return whether an attribute is true: 1 or 0; -1 with an exception. */
static int
is_true(PyObject *of, PyObject *name)
{
    PyObject *found = PyObject_GetAttr(of, name);
    int answer = found == NULL ? -1 : PyObject_IsTrue(found);
    Py_XDECREF(found);
    return answer;
}

/* Return an attribute of an attribute, which is the caller's. */
static PyObject *
get_of(PyObject *of, PyObject *first, PyObject *second)
{
    PyObject *between = PyObject_GetAttr(of, first);
    PyObject *found = between == NULL ? NULL : PyObject_GetAttr(between, second);
    Py_XDECREF(between);
    return found;
}

static int
add_to(PyObject *of, PyObject *name, int64_t added)
{
    int64_t value;
    if (!read_number(of, name, &value))
        return -1;
    PyObject *sum = PyLong_FromLongLong(value + added);
    int failed = sum == NULL || PyObject_SetAttr(of, name, sum) < 0;
    Py_XDECREF(sum);
    return failed ? -1 : 0;
}

/* The steps of an answer. Each returns whether to go on --------------------------------------------------------------- */

/* Find the request that is repeated, and the offset that is asked for. */
static int
repeats(const State *state, PyObject *connection, PyObject *data, Answer *answer)
{
    PyObject *known = PyObject_GetAttr(connection, state->known_fetch);
    if (known == NULL || known == Py_None) {
        Py_XDECREF(known);
        return 0;
    }
    answer->known = PyObject_GetAttr(known, state->compiled);
    Py_DECREF(known);
    if (answer->known == NULL || !PyTuple_Check(answer->known) || PyTuple_GET_SIZE(answer->known) != KNOWN_SIZE)
        return 0;
    answer->offset = PyObject_CallOneArg(PyTuple_GET_ITEM(answer->known, OFFSET_IN), data);
    return answer->offset != NULL && PyLong_AsLongLong(answer->offset) >= 0;
}

/* Find the partition, and the log that this broker leads, in the epoch that the client knows. */
static int
is_led(const State *state, PyObject *by_id, Answer *answer)
{
    PyObject *partition = PyDict_GetItemWithError(by_id, PyTuple_GET_ITEM(answer->known, KEY));
    if (partition == NULL)
        return 0;
    answer->partition = Py_NewRef(partition);
    answer->log = PyObject_GetAttr(partition, state->led_log);
    if (answer->log == NULL || answer->log == Py_None)
        return 0;
    int64_t epoch = PyLong_AsLongLong(PyTuple_GET_ITEM(answer->known, LEADER_EPOCH)), current;
    return epoch == -1 || (read_number(partition, state->leader_epoch, &current) && epoch == current);
}

/* Return whether the client may read the topic: 1 or 0; -1 with an exception. permission: the operation and the type of
 * the resource.
 */
static int
is_allowed(const State *state, PyObject *broker, PyObject *permission, PyObject *connection, const Answer *answer)
{
    PyObject *authorizer = PyObject_GetAttr(broker, state->authorizer);
    if (authorizer == NULL || authorizer == Py_None) {
        Py_XDECREF(authorizer);
        return authorizer == NULL ? -1 : 1;
    }
    PyObject *principal = PyObject_GetAttr(connection, state->principal);
    PyObject *host = principal == NULL ? NULL : PyObject_GetAttr(connection, state->host);
    PyObject *topic = host == NULL ? NULL : PyObject_GetAttr(answer->partition, state->topic);
    int allowed = -1;
    if (topic != NULL) {
        PyObject *const *wanted = &PyTuple_GET_ITEM(permission, 0);
        PyObject *arguments[] = {authorizer, principal, host, wanted[0], wanted[1], topic};
        PyObject *result = PyObject_VectorcallMethod(state->authorize, arguments, 6, NULL);
        allowed = result == NULL ? -1 : PyObject_IsTrue(result);
        Py_XDECREF(result);
    }
    Py_XDECREF(principal);
    Py_XDECREF(host);
    Py_XDECREF(topic);
    Py_DECREF(authorizer);
    return allowed;
}

/* Find where the log begins, and where what the client may see of it ends. */
static int
find_bounds(const State *state, Answer *answer)
{
    PyObject *unstable = get_of(answer->log, state->producers, state->unstable);
    int active = unstable == NULL ? -1 : is_true(unstable, state->active);
    Py_XDECREF(unstable);
    answer->start = PyObject_GetAttr(answer->log, state->log_start_offset);
    answer->end = PyObject_GetAttr(answer->partition, state->high_watermark);
    if (active < 0 || answer->start == NULL || answer->end == NULL)
        return 0;
    answer->stable = active ? PyObject_GetAttr(answer->partition, state->last_stable_offset) : Py_NewRef(answer->end);
    return answer->stable != NULL;
}

/* Find the records that were read before for the same limit, as Log.read_again does. */
static int
are_kept(const State *state, Answer *answer, PyObject *limit, PyObject *visible)
{
    PyObject *slices = get_of(answer->log, state->_view, state->slices);
    PyObject *kept = slices == NULL || !PyDict_Check(slices) ? NULL : PyDict_GetItemWithError(slices, answer->offset);
    Py_XINCREF(kept);
    Py_XDECREF(slices);
    if (kept == NULL || !PyTuple_Check(kept) || PyTuple_GET_SIZE(kept) != KEPT_SIZE
        || PyLong_AsLongLong(PyTuple_GET_ITEM(kept, KEPT_LIMIT)) != PyLong_AsLongLong(limit)
        || PyLong_AsLongLong(PyTuple_GET_ITEM(kept, BEHIND)) > PyLong_AsLongLong(visible)
        || PyLong_AsLongLong(answer->offset) < PyLong_AsLongLong(answer->start)
        || is_true(answer->log, state->closed) != 0 || PyErr_Occurred()) {
        Py_XDECREF(kept);
        return 0;
    }
    answer->kept = kept;
    answer->records = Py_NewRef(PyTuple_GET_ITEM(kept, RECORDS));
    return 1;
}

/* Find the records, of which there are enough, and none of an aborted transaction that a client of committed ones has to
 * be told of.
 */
static int
find_records(const State *state, Answer *answer, int64_t *size)
{
    int committed = PyTuple_GET_ITEM(answer->known, COMMITTED) == Py_True;
    PyObject *limit = PyTuple_GET_ITEM(answer->known, LIMIT), *visible = committed ? answer->stable : answer->end;
    if (are_kept(state, answer, limit, visible))
        *size = PyLong_AsLongLong(PyTuple_GET_ITEM(answer->kept, SIZE));
    else if (PyErr_Occurred())
        return 0;
    else {
        PyObject *arguments[] = {answer->log, answer->offset, limit, visible};
        answer->records = PyObject_VectorcallMethod(state->read, arguments, 3, state->read_keywords);
        if (answer->records == NULL || answer->records == Py_None
            || !read_number(answer->records, state->length, size))
            return 0;
    }
    if (*size < PyLong_AsLongLong(PyTuple_GET_ITEM(answer->known, LEAST)) || PyErr_Occurred())
        return 0;
    if (!committed)
        return 1;
    PyObject *arguments[] = {answer->log, answer->offset, answer->records, answer->stable};
    PyObject *aborted = PyObject_VectorcallMethod(state->aborted_in, arguments, 4, NULL);
    int any = aborted == NULL ? -1 : PyObject_IsTrue(aborted);
    Py_XDECREF(aborted);
    return any == 0;
}

/* Make what is in front of the records in the response. */
static int
make_head(Answer *answer, PyObject *data, int64_t size)
{
    PyObject *length = PyLong_FromLongLong(size);
    if (length != NULL) {
        PyObject *arguments[] = {data, answer->end, answer->stable, answer->start, length};
        answer->head = PyObject_Vectorcall(PyTuple_GET_ITEM(answer->known, RESPONSE_HEAD), arguments, 5, NULL);
        Py_DECREF(length);
    }
    return answer->head != NULL && PyBytes_Check(answer->head);
}

/* Count the answer. Return -1 with an exception. */
static int
count(const State *state, const Answer *answer, PyObject *requests, int64_t size)
{
    PyObject *before = PyList_GetItem(requests, FETCH), *one = PyLong_FromLong(1), *sum = NULL;
    if (before != NULL && one != NULL)
        sum = PyNumber_Add(before, one);
    Py_XDECREF(one);
    if (sum == NULL || PyList_SetItem(requests, FETCH, sum) < 0)
        return -1;
    return add_to(answer->partition, state->fetches, 1) < 0 ? -1 : add_to(answer->partition, state->fetched_bytes, size);
}

/* Send head, records and the zeros behind them, as far as the output allows it and the socket takes them: see
 * pylogd.wire.session.DirectOutput. Return how many bytes have left; -1 if this was not tried; -2 with an exception.
 */
static int64_t
send_now(const State *state, const Answer *answer, PyObject *output, int64_t size)
{
    int64_t above, most, sent = -2;
    if (answer->kept == NULL || PyLong_AsLongLong(PyTuple_GET_ITEM(answer->kept, ZEROS)) < END_SIZE)
        return -1;
    if (!read_number(output, state->direct_above, &above) || !read_number(output, state->max_chunk, &most))
        return -2;
    if (size + END_SIZE <= above || size + END_SIZE > most)
        return -1;
    PyObject *open = PyObject_GetAttr(output, state->socket), *length = PyLong_FromLongLong(size + END_SIZE);
    int number = open == NULL ? -1 : PyObject_AsFileDescriptor(open); /* -1 with an exception if it is closed */
    PyObject *socket = number < 0 ? NULL : PyLong_FromLong(number);
    PyObject *descriptor = get_of(answer->records, state->file, state->fd); /* not kept: a file may be closed */
    Py_XDECREF(open);
    if (socket != NULL && length != NULL && descriptor != NULL) {
        PyObject *const *kept = &PyTuple_GET_ITEM(answer->kept, 0);
        PyObject *arguments[] = {socket, answer->head, descriptor, kept[POSITION], length};
        PyObject *result = PyObject_Vectorcall(kept[SEND], arguments, 5, NULL);
        sent = result == NULL ? -2 : PyLong_AsLongLong(result);
        sent = sent == -1 ? (PyErr_Occurred() ? -2 : 0) : sent; /* -1: they are not in memory, and nothing has left */
        Py_XDECREF(result);
    }
    Py_XDECREF(socket);
    Py_XDECREF(length);
    Py_XDECREF(descriptor);
    return sent;
}

PyDoc_STRVAR(answer_repeated_doc,
"answer_repeated(broker, by_id, requests, permission, otherwise, connection, data, output, /)\n--\n\n"
"Answer the request in data if it repeats the connection's last one, and send to output what can be sent at once; or\n"
"have `otherwise(connection, data, output)` do it. Return a pylogd.wire.session.RepeatReply.\n\n"
"by_id: the partitions. requests: how many came, by API key. permission: what an authorizer is asked for, the operation\n"
"and the type of the resource.");

static PyObject *
answer_repeated(PyObject *self, PyObject *const *args, Py_ssize_t number)
{
    if (number != 8 || !PyDict_Check(args[1]) || !PyList_Check(args[2]) || !PyTuple_Check(args[3])
        || PyTuple_GET_SIZE(args[3]) != 2) {
        PyErr_SetString(PyExc_TypeError, "answer_repeated takes broker, by_id, requests, permission, otherwise, "
                                         "connection, data, output");
        return NULL;
    }
    const State *state = PyModule_GetState(self);
    PyObject *connection = args[5], *data = args[6], *reply = NULL;
    Answer answer = {0};
    int64_t size = 0;
    int allowed = repeats(state, connection, data, &answer) && is_led(state, args[1], &answer)
                  ? is_allowed(state, args[0], args[3], connection, &answer) : -1;
    if (!allowed) { /* the general handler says so */
        forget(&answer);
        Py_RETURN_NONE;
    }
    if (allowed < 0 || !find_bounds(state, &answer) || !find_records(state, &answer, &size)
        || !make_head(&answer, data, size)) {
        forget(&answer);
        PyErr_Clear(); /* it comes again, where it is handled */
        return PyObject_Vectorcall(args[4], args + 5, 3, NULL);
    }
    int64_t sent = count(state, &answer, args[2], size) < 0 ? -2 : send_now(state, &answer, args[7], size);
    if (sent == size + END_SIZE + PyBytes_GET_SIZE(answer.head))
        reply = Py_NewRef(Py_True);
    else if (sent != -2)
        reply = Py_BuildValue("OOOL", answer.head, answer.records, state->end, (long long)sent);
    forget(&answer);
    return reply;
}

static PyMethodDef methods[] = {
    {"answer_repeated", (PyCFunction)(void (*)(void))answer_repeated, METH_FASTCALL, answer_repeated_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, prepare},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_repeated", "Fetch requests that repeat the last one.", sizeof(State), methods, slots, NULL,
    clear_state, free_state,
};

PyMODINIT_FUNC
PyInit__repeated(void)
{
    return PyModuleDef_Init(&module);
}
