/* Answer a Fetch request that repeats the last one of its connection, or Produce requests that repeat the last batch:
 * pylogd.broker.api.fast.fetch.answer_repeated and pylogd.broker.api.fast.produce.answer_repeated_batch without the interpreter.
 * Optional; tests/property/test_repeated_fetches.py and test_request_batches.py compare both.
 *
 * Strategy: the same steps on the same objects, which are asked for attributes as Python would ask them. Of a Fetch,
 * where the sender allows it, also the call that sends head and records (`FileSystem.send_resident`). Of Produce
 * requests, a function of `_fast.c` finds and checks the batches; here is what surrounds it in Python: look-ups, write,
 * accounting. Slots are read in place (`_attributes.h`), and real files are written without `Segment.write`.
 *
 * Rules: whatever is not as usual, any exception included, is left to the function in Python, which begins anew: until
 * the answer is certain, nothing is changed here. Only then it is counted, and sent. Batches change something when they
 * are written, and a write that failed is not tried again: Python is told of its exception, and answers. The log's lock
 * is held from the look at its state until it is moved behind the batches, and released before anybody is woken. Where
 * appends go to write queues while a disk is slow (`log.paced`), `Log.writing` is held too, and the write is timed.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

enum { FETCH = 1, END_SIZE = 3 }; /* the API's key; bytes behind the records, which are zero */

/* What there is in pylogd.wire.fast.known_fetch.KnownFetch.compiled, and in pylogd.broker.log.reading.KeptSlice. */
enum { OFFSET_IN, RESPONSE_HEAD, KEY, LEADER_EPOCH, COMMITTED, LIMIT, LEAST, KNOWN_SIZE };
enum { KEPT_LIMIT, BEHIND, RECORDS, SIZE, ZEROS, SEND, POSITION, KEPT_SIZE };

/* What there is in pylogd.wire.fast.compiled.KnownShape.compiled, and in pylogd.broker.log.append.commit.Taken. */
enum { TAKE, SHAPE, HAS_ID, PARTITION, ACKS, SHAPE_SIZE };
enum { COUNT, END, DATA, REPLIES, END_OFFSET, SINCE_INDEX, STAMP, STAMP_OFFSET, ENTRIES, WROTE, TAKEN };
/* The first arguments of `append_repeated`. */
enum { BROKER, BY_ID, BY_NAME, INTERNAL, PERMISSION, OTHERWISE, NOT_WRITTEN_HANDLER, PARTS };
enum {
    MOST = 256,    /* requests that are appended together */
    LOG_STATE = 9, /* numbers in pylogd.broker.log.append.direct.LogState */
    LIMITS = 7,    /* numbers in pylogd.broker.log.append.header_check.CompiledLimits */
    REMEMBERED = 5, /* batches of a producer that a log remembers */
    PREFIX = 16,    /* bytes of a batch that the log writes */
};
#define NOTED 0.01 /* seconds: pylogd.broker.log.paced.NOTED_SECONDS */

/* The attributes that are used, by class: S for slots (`__slots__`), M for all others. `_attributes.h` makes the fields
 * of `Attributes` from these tables. pylogd.base.compiled compares them with the classes when the module is loaded, and
 * tests/unit/test_layers.py compares the classes with what pylogd.broker.api may import.
 */
#define CONNECTION(S, M) M(known_fetch) M(produce_shape) M(principal) M(host)
#define KNOWN_FETCH(S, M) S(compiled)
#define KNOWN_SHAPE(S, M) S(compiled)
#define SESSION(S, M) S(max_frame_bytes)
#define OUTPUT(S, M) M(socket) M(direct_above) M(max_chunk)
#define BROKER_PARTS(S, M) M(authorizer) M(replicas)
#define AUTHORIZER(S, M) M(authorize)
#define REPLICA_MANAGER(S, M) M(repeats_queued) M(fetch_waits) M(after_append)
#define PURGATORY(S, M) S(_watched) M(check)
#define PARTITION_OBJECT(S, M) \
    S(led_log) S(leader_epoch) S(high_watermark) S(topic) S(key) S(alone) S(enough_in_sync) S(flush_visible) \
    S(flush_at) S(fetches) S(fetched_bytes) S(produced) M(last_stable_offset)
#define LOG(S, M) \
    S(producers) S(epochs) S(storage) S(directory) S(fast_accept) S(log_start_offset) S(log_end_offset) S(closed) \
    S(now_ms) S(index_interval) S(_active) S(_view) S(_lock) S(_writing) M(read) M(aborted_in)
#define STORAGE(S, M) S(fs) S(appended) S(seconds)
#define FILE_SYSTEM(S, M) M(pwritev)
#define PRODUCERS(S, M) S(unstable) M(due) M(wrote)
#define UNSTABLE(S, M) S(active)
#define EPOCHS(S, M) S(latest)
#define FAST_ACCEPT(S, M) S(compiled)
#define VIEW(S, M) S(slices)
#define FILE_SLICE(S, M) S(file) S(length)
#define SEGMENT_FILE(S, M) S(fd)
#define SEGMENT(S, M) \
    S(size) S(file) S(indexes) S(max_entries) S(bytes_since_index) S(_max_timestamp) S(_max_timestamp_offset) \
    S(cached) S(storage) M(write) M(write_failed) M(note_cached) M(note_run)
#define INDEXES(S, M) S(offsets)
#define OFFSET_INDEX(S, M) S(entries)
#define LOCK(S, M) M(acquire) M(release)

#define CLASSES(CLASS) \
    CLASS(connection, CONNECTION, "pylogd.broker.api.fast.repeated:RepeatingConnection") \
    CLASS(known_fetch, KNOWN_FETCH, "pylogd.wire.fast.known_fetch:KnownFetch") \
    CLASS(known_shape, KNOWN_SHAPE, "pylogd.wire.fast.compiled:KnownShape") \
    CLASS(session, SESSION, "pylogd.wire.session:ServerSession") \
    CLASS(output, OUTPUT, "pylogd.wire.session:DirectOutput") \
    CLASS(broker, BROKER_PARTS, "pylogd.broker.api.context:BrokerParts") \
    CLASS(authorizer, AUTHORIZER, "pylogd.broker.security.authorizer:Authorizer") \
    CLASS(replicas, REPLICA_MANAGER, "pylogd.broker.replica.manager:ReplicaManager") \
    CLASS(purgatory, PURGATORY, "pylogd.broker.replica.purgatory:Purgatory") \
    CLASS(partition, PARTITION_OBJECT, "pylogd.broker.replica.partition:Partition") \
    CLASS(log, LOG, "pylogd.broker.log.log:Log") \
    CLASS(storage, STORAGE, "pylogd.broker.log.storage:Storage") \
    CLASS(fs, FILE_SYSTEM, "pylogd.broker.log.files:FileSystem") \
    CLASS(producers, PRODUCERS, "pylogd.broker.log.producers:Producers") \
    CLASS(unstable, UNSTABLE, "pylogd.broker.log.transactions:UnstableTransactions") \
    CLASS(epochs, EPOCHS, "pylogd.broker.log.epochs:LeaderEpochs") \
    CLASS(fast_accept, FAST_ACCEPT, "pylogd.broker.log.append.header_check:FastAccept") \
    CLASS(view, VIEW, "pylogd.broker.log.reading:SegmentsView") \
    CLASS(slice, FILE_SLICE, "pylogd.broker.log.files:FileSlice") \
    CLASS(file, SEGMENT_FILE, "pylogd.broker.log.files:SegmentFile") \
    CLASS(segment, SEGMENT, "pylogd.broker.log.segment:Segment") \
    CLASS(indexes, INDEXES, "pylogd.broker.log.index:Indexes") \
    CLASS(offsets, OFFSET_INDEX, "pylogd.broker.log.index:OffsetIndex") \
    CLASS(lock, LOCK, "_thread:LockType")

/* The numbers that others define too: theirs is a number, bytes or a type of tuples of this length. `_fast.c` has some
 * as well, but may not name what is above it: it is compared here with that.
 */
#define CONSTANTS(C) \
    C(FETCH, "pylogd.broker.api.statistics:FETCH") \
    C(MOST, "pylogd.broker.api.fast.repeated:MOST") \
    C(END_SIZE, "pylogd.wire.fast.known_fetch:END") \
    C(END_SIZE, "pylogd.wire.fast._fast:FETCH_END") \
    C(KNOWN_SIZE, "pylogd.wire.fast.known_fetch:Compiled") \
    C(SHAPE_SIZE, "pylogd.wire.fast.compiled:Compiled") \
    C(KEPT_SIZE, "pylogd.broker.log.reading:KeptSlice") \
    C(NOTED, "pylogd.broker.log.paced:NOTED_SECONDS") \
    C(LOG_STATE, "pylogd.broker.log.append.direct:LogState") \
    C(LOG_STATE, "pylogd.wire.fast._fast:LOG_STATE") \
    C(LIMITS, "pylogd.broker.log.append.header_check:CompiledLimits") \
    C(LIMITS, "pylogd.wire.fast._fast:LIMITS") \
    C(TAKEN, "pylogd.broker.log.append.commit:Taken") \
    C(TAKEN, "pylogd.wire.fast._fast:TAKEN") \
    C(REMEMBERED, "pylogd.broker.log.producers:REMEMBERED") \
    C(REMEMBERED, "pylogd.wire.fast._fast:REMEMBERED") \
    C(PREFIX, "pylogd.broker.log.append.full_check:PREFIX_SIZE") \
    C(PREFIX, "pylogd.wire.fast._fast:PREFIX")

#include "_attributes.h"

typedef struct {
    Attributes of;
    PyObject *end, *read_keywords, *zero, *most, *system_write;
} State;

static int
prepare(PyObject *module)
{
    State *state = PyModule_GetState(module);
    if (intern_names(&state->of) < 0 || declare_uses(module) < 0)
        return -1;
    state->end = PyBytes_FromStringAndSize("\0\0\0", END_SIZE);
    state->read_keywords = Py_BuildValue("(s)", "end_offset");
    state->zero = PyLong_FromLong(0);
    state->most = PyLong_FromLong(MOST);
    PyObject *os = PyImport_ImportModule("os");
    if (os == NULL)
        return -1;
    if ((state->system_write = PyObject_GetAttrString(os, "pwritev")) == NULL)
        PyErr_Clear(); /* some systems do not have it */
    Py_DECREF(os);
    return state->end == NULL || state->read_keywords == NULL || state->zero == NULL || state->most == NULL ? -1 : 0;
}

static int
clear_state(PyObject *module)
{
    State *state = PyModule_GetState(module);
    forget_names(&state->of);
    Py_CLEAR(state->end);
    Py_CLEAR(state->read_keywords);
    Py_CLEAR(state->zero);
    Py_CLEAR(state->most);
    Py_CLEAR(state->system_write);
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
read_number(PyObject *of, Attribute *name, int64_t *value)
{
    PyObject *found = get(of, name);
    if (found == NULL)
        return 0;
    *value = PyLong_AsLongLong(found);
    Py_DECREF(found);
    return *value != -1 || !PyErr_Occurred();
}

/* Return whether an attribute is true: 1 or 0; -1 with an exception. */
static int
is_true(PyObject *of, Attribute *name)
{
    PyObject *found = get(of, name);
    int answer = found == NULL ? -1 : PyObject_IsTrue(found);
    Py_XDECREF(found);
    return answer;
}

/* Return an attribute of an attribute, which is the caller's. */
static PyObject *
get_of(PyObject *of, Attribute *first, Attribute *second)
{
    PyObject *between = get(of, first);
    PyObject *found = between == NULL ? NULL : get(between, second);
    Py_XDECREF(between);
    return found;
}

static int
add_to(PyObject *of, Attribute *name, int64_t added)
{
    PyObject *before = get(of, name), *more = PyLong_FromLongLong(added), *sum = NULL;
    if (before != NULL && more != NULL)
        sum = PyNumber_Add(before, more); /* of any size, as in Python */
    int failed = sum == NULL || set(of, name, sum) < 0;
    Py_XDECREF(before);
    Py_XDECREF(more);
    Py_XDECREF(sum);
    return failed ? -1 : 0;
}

/* The steps of an answer. Each returns whether to go on --------------------------------------------------------------- */

/* Find the request that is repeated, and the offset that is asked for. */
static int
repeats(State *state, PyObject *connection, PyObject *data, Answer *answer)
{
    PyObject *known = get(connection, &state->of.connection.known_fetch);
    if (known == NULL || known == Py_None) {
        Py_XDECREF(known);
        return 0;
    }
    answer->known = get(known, &state->of.known_fetch.compiled);
    Py_DECREF(known);
    if (answer->known == NULL || !PyTuple_Check(answer->known) || PyTuple_GET_SIZE(answer->known) != KNOWN_SIZE)
        return 0;
    answer->offset = PyObject_CallOneArg(PyTuple_GET_ITEM(answer->known, OFFSET_IN), data);
    return answer->offset != NULL && PyLong_AsLongLong(answer->offset) >= 0;
}

/* Find the partition, and the log that this broker leads, in the epoch that the client knows. */
static int
is_led(State *state, PyObject *by_id, Answer *answer)
{
    PyObject *partition = PyDict_GetItemWithError(by_id, PyTuple_GET_ITEM(answer->known, KEY));
    if (partition == NULL)
        return 0;
    answer->partition = Py_NewRef(partition);
    answer->log = get(partition, &state->of.partition.led_log);
    if (answer->log == NULL || answer->log == Py_None)
        return 0;
    int64_t epoch = PyLong_AsLongLong(PyTuple_GET_ITEM(answer->known, LEADER_EPOCH)), current;
    if (epoch == -1) /* the client does not say which, or the number is none */
        return !PyErr_Occurred();
    return read_number(partition, &state->of.partition.leader_epoch, &current) && epoch == current;
}

/* Return whether the client has a permission for the topic: 1 or 0; -1 with an exception. permission: the operation and
 * the type of the resource.
 */
static int
is_allowed(State *state, PyObject *broker, PyObject *permission, PyObject *connection, PyObject *partition)
{
    PyObject *authorizer = get(broker, &state->of.broker.authorizer);
    if (authorizer == NULL || authorizer == Py_None) {
        Py_XDECREF(authorizer);
        return authorizer == NULL ? -1 : 1;
    }
    PyObject *principal = get(connection, &state->of.connection.principal);
    PyObject *host = principal == NULL ? NULL : get(connection, &state->of.connection.host);
    PyObject *topic = host == NULL ? NULL : get(partition, &state->of.partition.topic);
    int allowed = -1;
    if (topic != NULL) {
        PyObject *const *wanted = &PyTuple_GET_ITEM(permission, 0);
        PyObject *arguments[] = {authorizer, principal, host, wanted[0], wanted[1], topic};
        PyObject *result = PyObject_VectorcallMethod(state->of.authorizer.authorize.name, arguments, 6, NULL);
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
find_bounds(State *state, Answer *answer)
{
    PyObject *unstable = get_of(answer->log, &state->of.log.producers, &state->of.producers.unstable);
    int active = unstable == NULL ? -1 : is_true(unstable, &state->of.unstable.active);
    Py_XDECREF(unstable);
    answer->start = get(answer->log, &state->of.log.log_start_offset);
    answer->end = get(answer->partition, &state->of.partition.high_watermark);
    if (active < 0 || answer->start == NULL || answer->end == NULL)
        return 0;
    answer->stable = active ? get(answer->partition, &state->of.partition.last_stable_offset) : Py_NewRef(answer->end);
    return answer->stable != NULL;
}

/* Find the records that were read before for the same limit, as Log.read_again does. */
static int
are_kept(State *state, Answer *answer, PyObject *limit, PyObject *visible)
{
    PyObject *slices = get_of(answer->log, &state->of.log._view, &state->of.view.slices);
    PyObject *kept = slices == NULL || !PyDict_Check(slices) ? NULL : PyDict_GetItemWithError(slices, answer->offset);
    Py_XINCREF(kept);
    Py_XDECREF(slices);
    if (kept == NULL || !PyTuple_Check(kept) || PyTuple_GET_SIZE(kept) != KEPT_SIZE
        || PyLong_AsLongLong(PyTuple_GET_ITEM(kept, KEPT_LIMIT)) != PyLong_AsLongLong(limit)
        || PyLong_AsLongLong(PyTuple_GET_ITEM(kept, BEHIND)) > PyLong_AsLongLong(visible)
        || PyLong_AsLongLong(answer->offset) < PyLong_AsLongLong(answer->start)
        || is_true(answer->log, &state->of.log.closed) != 0 || PyErr_Occurred()) {
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
find_records(State *state, Answer *answer, int64_t *size)
{
    int committed = PyTuple_GET_ITEM(answer->known, COMMITTED) == Py_True;
    PyObject *limit = PyTuple_GET_ITEM(answer->known, LIMIT), *visible = committed ? answer->stable : answer->end;
    if (are_kept(state, answer, limit, visible))
        *size = PyLong_AsLongLong(PyTuple_GET_ITEM(answer->kept, SIZE));
    else if (PyErr_Occurred())
        return 0;
    else {
        PyObject *arguments[] = {answer->log, answer->offset, limit, visible};
        answer->records = PyObject_VectorcallMethod(state->of.log.read.name, arguments, 3, state->read_keywords);
        if (answer->records == NULL || answer->records == Py_None
            || !read_number(answer->records, &state->of.slice.length, size))
            return 0;
    }
    if (*size < PyLong_AsLongLong(PyTuple_GET_ITEM(answer->known, LEAST)) || PyErr_Occurred())
        return 0;
    if (!committed)
        return 1;
    PyObject *arguments[] = {answer->log, answer->offset, answer->records, answer->stable};
    PyObject *aborted = PyObject_VectorcallMethod(state->of.log.aborted_in.name, arguments, 4, NULL);
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

/* Count the answer, in the order of fetch.answer_repeated. Return -1 with an exception. */
static int
count(State *state, const Answer *answer, PyObject *requests, int64_t size)
{
    if (add_to(answer->partition, &state->of.partition.fetches, 1) < 0
        || add_to(answer->partition, &state->of.partition.fetched_bytes, size) < 0)
        return -1;
    PyObject *before = PyList_GetItem(requests, FETCH), *one = PyLong_FromLong(1), *sum = NULL;
    if (before != NULL && one != NULL)
        sum = PyNumber_Add(before, one);
    Py_XDECREF(one);
    return sum == NULL ? -1 : PyList_SetItem(requests, FETCH, sum);
}

/* Send head, records and the zeros behind them, as far as the output allows it and the socket takes them: see
 * pylogd.wire.session.DirectOutput. Return how many bytes have left; -1 if this was not tried; -2 with an exception.
 */
static int64_t
send_now(State *state, const Answer *answer, PyObject *output, int64_t size)
{
    int64_t above, most, sent = -2;
    if (answer->kept == NULL || PyLong_AsLongLong(PyTuple_GET_ITEM(answer->kept, ZEROS)) < END_SIZE)
        return -1;
    if (!read_number(output, &state->of.output.direct_above, &above)
        || !read_number(output, &state->of.output.max_chunk, &most))
        return -2;
    if (size + END_SIZE <= above || size + END_SIZE > most)
        return -1;
    PyObject *open = get(output, &state->of.output.socket), *length = PyLong_FromLongLong(size + END_SIZE);
    int number = open == NULL ? -1 : PyObject_AsFileDescriptor(open); /* -1 with an exception if it is closed */
    PyObject *socket = number < 0 ? NULL : PyLong_FromLong(number);
    /* The descriptor is not kept: a file may be closed. */
    PyObject *descriptor = get_of(answer->records, &state->of.slice.file, &state->of.file.fd);
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
    State *state = PyModule_GetState(self);
    PyObject *connection = args[5], *data = args[6], *reply = NULL;
    Answer answer = {0};
    int64_t size = 0;
    int allowed = repeats(state, connection, data, &answer) && is_led(state, args[1], &answer)
                  ? is_allowed(state, args[0], args[3], connection, answer.partition) : -1;
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

/* Produce ---------------------------------------------------------------------------------------------------------- */

/* What an append is made of. All are references of our own, or NULL. paced: is told of a write that took long, NULL if
 * nobody is. took: its seconds.
 */
typedef struct {
    PyObject *known, *partition, *replicas, *log, *segment, *taken, *paced;
    double took;
} Append;

static void
drop(Append *append)
{
    Py_XDECREF(append->known);
    Py_XDECREF(append->partition);
    Py_XDECREF(append->replicas);
    Py_XDECREF(append->log);
    Py_XDECREF(append->segment);
    Py_XDECREF(append->taken);
    Py_XDECREF(append->paced);
}

/* Find the shape that is repeated, and the partition that such requests are for. Return whether there is one. */
static int
finds_partition(State *state, PyObject *const *parts, PyObject *connection, Append *append)
{
    PyObject *known = get(connection, &state->of.connection.produce_shape);
    if (known == NULL || known == Py_None) {
        Py_XDECREF(known);
        return 0;
    }
    append->known = get(known, &state->of.known_shape.compiled);
    Py_DECREF(known);
    if (append->known == NULL || !PyTuple_Check(append->known) || PyTuple_GET_SIZE(append->known) != SHAPE_SIZE)
        return 0;
    PyObject *hosted = parts[PyTuple_GET_ITEM(append->known, HAS_ID) == Py_True ? BY_ID : BY_NAME];
    append->partition = Py_XNewRef(PyDict_GetItemWithError(hosted, PyTuple_GET_ITEM(append->known, PARTITION)));
    return append->partition != NULL;
}

/* Return whether a client may write to the partition, as far as permissions say: 1 or 0; -1 with an exception. */
static int
may_write(State *state, PyObject *const *parts, PyObject *connection, const Append *append)
{
    PyObject *topic = get(append->partition, &state->of.partition.topic);
    int internal = topic == NULL ? -1 : PySet_Contains(parts[INTERNAL], topic);
    Py_XDECREF(topic);
    return internal ? -(internal < 0)
                    : is_allowed(state, parts[BROKER], parts[PERMISSION], connection, append->partition);
}

/* Return whether an append is made at once, and what is appended is committed at once if the client waits for that: as
 * `_answer` and Partition.append_batches see it. Find the log.
 */
static int
is_immediate(State *state, PyObject *broker, Append *append)
{
    PyObject *partition = append->partition;
    int64_t acks = PyLong_AsLongLong(PyTuple_GET_ITEM(append->known, ACKS));
    if (acks == -1 && PyErr_Occurred()) /* it is no number: nothing may be called with an exception set */
        return 0;
    append->replicas = get(broker, &state->of.broker.replicas);
    PyObject *queues = append->replicas == NULL ? NULL : get(append->replicas, &state->of.replicas.repeats_queued);
    int queued = queues == NULL ? -1 : PySequence_Contains(queues, partition);
    Py_XDECREF(queues);
    if (queued || (acks != 1 && acks != -1))
        return 0;
    if (acks == -1 && (is_true(partition, &state->of.partition.flush_visible) != 0
                       || is_true(partition, &state->of.partition.alone) != 1
                       || is_true(partition, &state->of.partition.enough_in_sync) != 1))
        return 0;
    append->log = get(partition, &state->of.partition.led_log);
    return append->log != NULL && append->log != Py_None;
}

/* Find the segment that is appended to, in the log's latest epoch, with space in its index for as many as are taken. */
static int
finds_segment(State *state, Append *append, PyObject *epoch)
{
    PyObject *latest = get_of(append->log, &state->of.log.epochs, &state->of.epochs.latest);
    int same = latest == NULL ? 0 : PyObject_RichCompareBool(latest, epoch, Py_EQ);
    Py_XDECREF(latest);
    append->segment = same == 1 ? get(append->log, &state->of.log._active) : NULL;
    if (append->segment == NULL)
        return 0;
    PyObject *indexes = get(append->segment, &state->of.segment.indexes);
    int known = indexes != NULL && indexes != Py_None;
    PyObject *offsets = known ? get_of(indexes, &state->of.indexes.offsets, &state->of.offsets.entries) : NULL;
    int64_t entries = offsets == NULL ? -1 : PyObject_Size(offsets), most;
    Py_XDECREF(indexes);
    Py_XDECREF(offsets);
    return entries >= 0 && read_number(append->segment, &state->of.segment.max_entries, &most) && entries + MOST < most;
}

/* Return what pylogd.broker.log.append.direct.LogState says, or NULL. */
static PyObject *
state_of(State *state, const Append *append, PyObject *epoch)
{
    PyObject *log = append->log, *segment = append->segment;
    PyObject *from[] = {segment, log, NULL, log, log, log, segment, segment, segment};
    Attribute *names[] = {
        &state->of.segment.size, &state->of.log.log_end_offset, NULL, &state->of.log.now_ms,
        &state->of.log.log_start_offset, &state->of.log.index_interval, &state->of.segment.bytes_since_index,
        &state->of.segment._max_timestamp, &state->of.segment._max_timestamp_offset,
    };
    PyObject *found = PyTuple_New(LOG_STATE);
    for (int i = 0; found != NULL && i < LOG_STATE; i++) {
        PyObject *value = from[i] == NULL ? Py_NewRef(epoch) : get(from[i], names[i]);
        if (names[i] == &state->of.log.now_ms && value != NULL) {
            PyObject *clock = value;
            value = PyObject_CallNoArgs(clock);
            Py_DECREF(clock);
        }
        if (value == NULL)
            Py_CLEAR(found);
        else
            PyTuple_SET_ITEM(found, i, value);
    }
    return found;
}

/* Have the function of the shape find and check the requests. Return whether it has taken any. */
static int
takes(State *state, Append *append, PyObject *data, PyObject *session)
{
    PyObject *epoch = get(append->partition, &state->of.partition.leader_epoch), *arguments[9] = {NULL};
    int ready = epoch != NULL && finds_segment(state, append, epoch);
    if (ready) {
        arguments[0] = Py_NewRef(Py_None);
        arguments[1] = Py_NewRef(data);
        arguments[2] = Py_NewRef(state->zero);
        arguments[3] = Py_NewRef(state->most);
        arguments[5] = Py_NewRef(PyTuple_GET_ITEM(append->known, SHAPE));
        ready = (arguments[4] = get(session, &state->of.session.max_frame_bytes)) != NULL
                && (arguments[6] = get_of(append->log, &state->of.log.fast_accept,
                                          &state->of.fast_accept.compiled)) != NULL
                && arguments[6] != Py_None && (arguments[7] = state_of(state, append, epoch)) != NULL
                && (arguments[8] = get_of(append->log, &state->of.log.producers, &state->of.producers.due)) != NULL;
    }
    if (ready)
        append->taken = PyObject_Vectorcall(PyTuple_GET_ITEM(append->known, TAKE), arguments, 9, NULL);
    for (int i = 0; i < 9; i++)
        Py_XDECREF(arguments[i]);
    Py_XDECREF(epoch);
    return append->taken != NULL && PyTuple_Check(append->taken) && PyTuple_GET_SIZE(append->taken) == TAKEN
           && PyBytes_Check(PyTuple_GET_ITEM(append->taken, DATA))
           && PyList_Check(PyTuple_GET_ITEM(append->taken, ENTRIES))
           && PyList_Check(PyTuple_GET_ITEM(append->taken, WROTE));
}

/* Call a method that returns nothing of interest. Return -1 with an exception. */
static int
call(PyObject *name, PyObject *const *arguments, size_t count)
{
    PyObject *result = PyObject_VectorcallMethod(name, arguments, count, NULL);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* Account for what was written, as pylogd.broker.log.append.commit.commit_run does. size: of it. behind: the size of
 * the segment with it. Return -1 with an exception.
 */
static int
note_written(State *state, const Append *append, PyObject *buffers, PyObject *size, PyObject *behind)
{
    PyObject *log = append->log, *segment = append->segment, *const *taken = &PyTuple_GET_ITEM(append->taken, 0);
    PyObject *cached = get(segment, &state->of.segment.cached);
    PyObject *written[] = {segment, buffers, size};
    int failed = cached == NULL || (cached != Py_None && call(state->of.segment.note_cached.name, written, 3) < 0);
    Py_XDECREF(cached);
    if (!failed && PyList_GET_SIZE(taken[ENTRIES])) {
        PyObject *run[] = {segment, size, taken[SINCE_INDEX], taken[STAMP], taken[STAMP_OFFSET], taken[ENTRIES]};
        failed = call(state->of.segment.note_run.name, run, 6) < 0;
    } else if (!failed)
        failed = set(segment, &state->of.segment.bytes_since_index, taken[SINCE_INDEX]) < 0
                 || set(segment, &state->of.segment._max_timestamp, taken[STAMP]) < 0
                 || set(segment, &state->of.segment._max_timestamp_offset, taken[STAMP_OFFSET]) < 0
                 || set(segment, &state->of.segment.size, behind) < 0;
    if (!failed && PyList_GET_SIZE(taken[WROTE])) {
        PyObject *wrote = get_of(log, &state->of.log.producers, &state->of.producers.wrote);
        failed = wrote == NULL;
        for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(taken[WROTE]); i++) {
            PyObject *result = PyObject_Call(wrote, PyList_GET_ITEM(taken[WROTE], i), NULL);
            failed = result == NULL;
            Py_XDECREF(result);
        }
        Py_XDECREF(wrote);
    }
    return failed || set(log, &state->of.log.log_end_offset, taken[END_OFFSET]) < 0 ? -1 : 0;
}

enum { LEFT, APPENDED, NOT_WRITTEN, BROKEN };

/* Have Python undo a write that failed. Return NOT_WRITTEN, with its exception. */
static int
undo_write(State *state, PyObject *segment, int number)
{
    PyObject *type, *error, *trace;
    errno = number;
    PyErr_SetFromErrno(PyExc_OSError);
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    PyObject *failed[] = {segment, error};
    call(state->of.segment.write_failed.name, failed, 2);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return NOT_WRITTEN;
}

static double
seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Write to the end of a segment, as Segment.write does where its call is os.pwritev. Return APPENDED; NOT_WRITTEN with
 * an exception; LEFT if Segment.write has to: its call is another, it has no file, or not all of the bytes were
 * written. Then they are written again, to the same place.
 */
static int
write_now(State *state, Append *append, PyObject *bytes, int64_t position)
{
    PyObject *segment = append->segment;
    int found = LEFT, number = 0, timed = append->paced != NULL;
    int64_t fd;
    ssize_t written, size = PyBytes_GET_SIZE(bytes);
    PyObject *system = get_of(segment, &state->of.segment.storage, &state->of.storage.fs);
    PyObject *pwritev = system == NULL ? NULL : get(system, &state->of.fs.pwritev);
    PyObject *file = pwritev == NULL || pwritev != state->system_write ? NULL : get(segment, &state->of.segment.file);
    if (file != NULL && read_number(file, &state->of.file.fd, &fd) && fd >= 0 && fd <= INT_MAX) {
        Py_BEGIN_ALLOW_THREADS
        double began = timed ? seconds_now() : 0.0;
        written = pwrite((int)fd, PyBytes_AS_STRING(bytes), (size_t)size, (off_t)position);
        number = errno;
        if (timed)
            append->took = seconds_now() - began;
        Py_END_ALLOW_THREADS
        if (written == size)
            found = APPENDED;
        else if (written < 0 && number != EINTR)
            found = undo_write(state, segment, number);
    }
    if (found == LEFT)
        PyErr_Clear();
    Py_XDECREF(system);
    Py_XDECREF(pwritev);
    Py_XDECREF(file); /* not before: another thread may abandon the log meanwhile */
    return found;
}

/* Read the clock of a log. Return whether it could be read. */
static int
read_clock(State *state, PyObject *log, double *now)
{
    PyObject *clock = get_of(log, &state->of.log.storage, &state->of.storage.seconds);
    PyObject *found = clock == NULL ? NULL : PyObject_CallNoArgs(clock);
    *now = found == NULL ? -1.0 : PyFloat_AsDouble(found);
    Py_XDECREF(clock);
    Py_XDECREF(found);
    return !PyErr_Occurred();
}

/* Have Segment.write write, and time it by the log's clock where that is wanted. Return APPENDED or NOT_WRITTEN. */
static int
write_by_segment(State *state, Append *append, PyObject *const *written)
{
    double began = 0.0, ended = 0.0;
    int timed = append->paced != NULL;
    if (timed && !read_clock(state, append->log, &began))
        return NOT_WRITTEN;
    int found = call(state->of.segment.write.name, written, 3) < 0 ? NOT_WRITTEN : APPENDED;
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    if (timed && read_clock(state, append->log, &ended))
        append->took = ended - began;
    PyErr_Restore(type, error, trace);
    return found;
}

/* Take the requests and append them, as Log.append_batches does. The caller holds the log's lock. Return LEFT if
 * nothing was done, maybe with an exception; NOT_WRITTEN with the exception of a write, after which nothing has changed
 * either; BROKEN with an exception that nobody expects.
 */
static int
append_taken(State *state, Append *append, PyObject *data, PyObject *session)
{
    int64_t before;
    if (!takes(state, append, data, session) || !read_number(append->segment, &state->of.segment.size, &before))
        return LEFT;
    PyObject *bytes = PyTuple_GET_ITEM(append->taken, DATA), *buffers = PyTuple_Pack(1, bytes);
    PyObject *size = PyLong_FromSsize_t(PyBytes_GET_SIZE(bytes));
    PyObject *behind = PyLong_FromLongLong(before + PyBytes_GET_SIZE(bytes));
    int found = LEFT;
    if (buffers != NULL && size != NULL && behind != NULL) {
        PyObject *written[] = {append->segment, buffers, size};
        found = write_now(state, append, bytes, before);
        if (found == LEFT)
            found = write_by_segment(state, append, written);
        if (found == APPENDED && note_written(state, append, buffers, size, behind) < 0)
            found = BROKEN;
    }
    Py_XDECREF(buffers);
    Py_XDECREF(size);
    Py_XDECREF(behind);
    return found;
}

/* Take the result of a call that was made beside an exception that was fetched. Return `found`, with that exception set
 * again; or BROKEN, with the call's own exception.
 */
static int
after_call(PyObject *result, PyObject *type, PyObject *error, PyObject *trace, int found)
{
    if (result != NULL)
        PyErr_Restore(type, error, trace);
    else {
        found = BROKEN;
        Py_XDECREF(type);
        Py_XDECREF(error);
        Py_XDECREF(trace);
    }
    Py_XDECREF(result);
    return found;
}

/* Release a lock after an append that ended as `found`. Return that, or BROKEN. An exception that is set stays set. */
static int
release(State *state, PyObject *lock, int found)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    return after_call(PyObject_CallMethodNoArgs(lock, state->of.lock.release.name), type, error, trace, found);
}

/* Do as `append_taken`, with the log's lock. */
static int
append_locked(State *state, Append *append, PyObject *data, PyObject *session)
{
    PyObject *lock = get(append->log, &state->of.log._lock), *held = NULL;
    if (lock != NULL && lock != Py_None)
        held = PyObject_CallMethodNoArgs(lock, state->of.lock.acquire.name);
    int found = LEFT;
    if (held != NULL) {
        found = append_taken(state, append, data, session);
        found = release(state, lock, found);
    }
    Py_XDECREF(held);
    Py_XDECREF(lock);
    return found;
}

/* Tell the disk's pace of a write that took long, as PacedLog does. An exception that is set stays set. */
static int
note_pace(State *state, const Append *append, int found)
{
    if (append->paced == NULL || append->took < NOTED)
        return found;
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyObject *directory = get(append->log, &state->of.log.directory), *took = PyFloat_FromDouble(append->took);
    PyObject *result = NULL;
    if (directory != NULL && took != NULL)
        result = PyObject_CallFunctionObjArgs(append->paced, directory, took, NULL);
    Py_XDECREF(directory);
    Py_XDECREF(took);
    return after_call(result, type, error, trace, found);
}

/* Do as `append_locked`; where the log's appends are made in threads while its disk is slow, with `Log.writing`, which
 * excludes those. It is not waited for: while it is held, LEFT is returned.
 */
static int
append_paced(State *state, Append *append, PyObject *data, PyObject *session)
{
    PyObject *paced = get_of(append->log, &state->of.log.storage, &state->of.storage.appended);
    if (paced == NULL || paced == Py_None) {
        int found = paced == NULL ? LEFT : append_locked(state, append, data, session);
        Py_XDECREF(paced);
        return found;
    }
    append->paced = paced;
    PyObject *writing = get(append->log, &state->of.log._writing), *held = NULL;
    if (writing != NULL && writing != Py_None) {
        PyObject *arguments[] = {writing, Py_False};
        held = PyObject_VectorcallMethod(state->of.lock.acquire.name, arguments, 2, NULL);
    }
    int found = LEFT;
    if (held == Py_True) {
        found = append_locked(state, append, data, session);
        found = note_pace(state, append, release(state, writing, found));
    }
    Py_XDECREF(held);
    Py_XDECREF(writing);
    return found;
}

/* Call Purgatory.check, unless nobody waits for a change of the partition. Return -1 with an exception. */
static int
wake(State *state, const Append *append)
{
    PyObject *waits = get(append->replicas, &state->of.replicas.fetch_waits);
    PyObject *watched = waits == NULL ? NULL : get(waits, &state->of.purgatory._watched);
    PyObject *key = watched == NULL ? NULL : get(append->partition, &state->of.partition.key);
    int failed = key == NULL;
    if (!failed && (!PyDict_Check(watched) || PyDict_GetItemWithError(watched, key) != NULL)) {
        PyObject *check[] = {waits, key};
        failed = call(state->of.purgatory.check.name, check, 2) < 0;
    } else if (!failed)
        failed = PyErr_Occurred() != NULL;
    Py_XDECREF(waits);
    Py_XDECREF(watched);
    Py_XDECREF(key);
    return failed ? -1 : 0;
}

/* Commit what was appended, wake who waits for it, and count it, as Partition.appended_to, ReplicaManager.after_append
 * and Python's `_append_compiled` do. Return -1 with an exception.
 */
static int
note_appended(State *state, const Append *append)
{
    PyObject *partition = append->partition, *const *taken = &PyTuple_GET_ITEM(append->taken, 0);
    int alone = is_true(partition, &state->of.partition.alone);
    int waits = alone == 1 ? is_true(partition, &state->of.partition.flush_visible) : 0;
    if (alone < 0 || waits < 0
        || (alone && !waits && set(partition, &state->of.partition.high_watermark, taken[END_OFFSET]) < 0))
        return -1;
    PyObject *flush_at = get(partition, &state->of.partition.flush_at);
    int flushes = flush_at == NULL ? -1 : PyObject_RichCompareBool(taken[END_OFFSET], flush_at, Py_GT);
    Py_XDECREF(flush_at);
    if (flushes < 0)
        return -1;
    if (flushes) {
        PyObject *appended[] = {append->replicas, partition, append->log};
        if (call(state->of.replicas.after_append.name, appended, 3) < 0)
            return -1;
    } else if (wake(state, append) < 0)
        return -1;
    return add_to(partition, &state->of.partition.produced, PyLong_AsLongLong(taken[COUNT]));
}

/* Have Python answer after a write that failed, with the exception, which is taken. */
static PyObject *
tell_failure(PyObject *const *parts, PyObject *const *asked, const Append *append)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace != NULL)
        PyException_SetTraceback(error, trace);
    PyObject *arguments[] = {asked[0], asked[1], asked[2], append->partition, error};
    PyObject *answer = PyObject_Vectorcall(parts[NOT_WRITTEN_HANDLER], arguments, 5, NULL);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return answer;
}

PyDoc_STRVAR(append_repeated_doc,
"append_repeated(broker, by_id, by_name, internal, permission, otherwise, failed, connection, data, session, /)\n--\n\n"
"Append the first requests in data, and answer them, if they repeat the connection's last batch; or have\n"
"`otherwise(connection, data, session)` do it. Return a pylogd.wire.session.RepeatedBatch.\n\n"
"by_id, by_name: the partitions. internal: names of topics that clients may not write to. permission: see\n"
"answer_repeated. failed: answers after an error of a write, which is its last argument behind the partition.");

static PyObject *
append_repeated(PyObject *self, PyObject *const *args, Py_ssize_t number)
{
    if (number != PARTS + 3 || !PyDict_Check(args[BY_ID]) || !PyDict_Check(args[BY_NAME])
        || !PyAnySet_Check(args[INTERNAL]) || !PyTuple_Check(args[PERMISSION])
        || PyTuple_GET_SIZE(args[PERMISSION]) != 2 || !PyBytes_Check(args[PARTS + 1])) {
        PyErr_SetString(PyExc_TypeError, "append_repeated takes broker, by_id, by_name, internal, permission, "
                                         "otherwise, failed, connection, data, session");
        return NULL;
    }
    State *state = PyModule_GetState(self);
    PyObject *connection = args[PARTS], *answer = NULL;
    Append append = {0};
    int allowed = finds_partition(state, args, connection, &append) ? may_write(state, args, connection, &append) : -1;
    int found = LEFT;
    if (allowed > 0 && is_immediate(state, args[BROKER], &append))
        found = append_paced(state, &append, args[PARTS + 1], args[PARTS + 2]);
    if (found == APPENDED) {
        if (note_appended(state, &append) == 0)
            answer = PyTuple_Pack(2, PyTuple_GET_ITEM(append.taken, REPLIES), PyTuple_GET_ITEM(append.taken, END));
    } else if (found == NOT_WRITTEN)
        answer = tell_failure(args, args + PARTS, &append);
    else if (found == LEFT && allowed == 0)
        answer = Py_NewRef(Py_None); /* the general handler says so */
    else if (found == LEFT) {
        PyErr_Clear(); /* it comes again, where it is handled */
        answer = PyObject_Vectorcall(args[OTHERWISE], args + PARTS, 3, NULL);
    }
    drop(&append);
    return answer;
}

static PyMethodDef methods[] = {
    {"append_repeated", (PyCFunction)(void (*)(void))append_repeated, METH_FASTCALL, append_repeated_doc},
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
    PyModuleDef_HEAD_INIT, "_repeated", "Fetch and Produce requests that repeat the last ones.", sizeof(State), methods,
    slots, NULL, clear_state, free_state,
};

PyMODINIT_FUNC
PyInit__repeated(void)
{
    return PyModuleDef_Init(&module);
}
