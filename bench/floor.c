/* The floor: the least that any process has to do to serve a Kafka client, in C.
 *
 *   floor PORT FOLDER
 *
 * It answers without looking at what it was sent: no check of a batch, no CRC, no offsets of producers, no errors, no
 * replication, and no data after a restart. One topic `t` with one partition. What is left are the system calls, and the
 * bytes that every broker writes: each read is answered with one write to the log and one send for all Produce requests
 * in it, and fetched records leave by sendfile. So its processor time is what no broker can be below, and the
 * quotient broker / floor is what a broker's own work costs. For the same on Twisted see bench/ceiling_broker.py.
 *
 * Produce from version 3 to 7, Fetch 4, ListOffsets 1, Metadata 1 and ApiVersions 0: what librdkafka uses with brokers
 * that serve no newer ones. A client is trusted: use it on loopback, for measurements only.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS = 18 };
enum {
    READ = 1 << 18,          /* bytes of a read, as pylogd has it */
    JOINED = 4096,           /* smaller batches are copied, to be written together */
    INDEX_INTERVAL = 4096,   /* bytes between two entries of the index */
    EVENTS = 64,
    LONGEST_WAIT = 500,      /* milliseconds of a fetch that finds nothing */
};

typedef struct Connection {
    int fd;
    uint32_t events;         /* what epoll watches */
    uint8_t *in;             /* received, in[in_at..in_size) not yet handled */
    size_t in_at, in_size, in_capacity;
    uint8_t *out;            /* replies that are not sent yet */
    size_t out_at, out_size, out_capacity;
    off_t slice_at;          /* what of the log follows the replies */
    size_t slice_left;
    int64_t deadline;        /* of a fetch that waits, in milliseconds; 0 for none */
    struct Connection *next;
} Connection;

static int epoll, log_fd, port;
static off_t log_size;
static int64_t next_offset;
static struct { int64_t offset; off_t position; } *entries;
static size_t entry_count, entry_capacity;
static uint8_t *joined; /* batches that wait for the write at the end of the read */
static size_t joined_size;
static Connection *connections;
static int waiting; /* how many fetches wait */

static void
die(const char *what)
{
    perror(what);
    exit(1);
}

static int64_t
now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static void
grow(uint8_t **memory, size_t *capacity, size_t wanted)
{
    if (wanted <= *capacity)
        return;
    *capacity = wanted < 2 * *capacity ? 2 * *capacity : wanted;
    if ((*memory = realloc(*memory, *capacity)) == NULL)
        die("realloc");
}

/* Numbers, which are big-endian ------------------------------------------------------------------------------------ */

static uint64_t
get(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value = value << 8 | at[i];
    return value;
}

static void
put(Connection *to, uint64_t value, int bytes)
{
    while (bytes--)
        to->out[to->out_size++] = (uint8_t)(value >> 8 * bytes);
}

static void
put_text(Connection *to, const char *text)
{
    size_t size = strlen(text);
    put(to, size, 2);
    memcpy(to->out + to->out_size, text, size);
    to->out_size += size;
}

/* Reserve memory for a reply, which has less than 1 KB, and begin it. Return where its length belongs. */
static size_t
begin(Connection *to, uint32_t correlation_id)
{
    grow(&to->out, &to->out_capacity, to->out_size + 1024);
    size_t start = to->out_size;
    put(to, 0, 4);
    put(to, correlation_id, 4);
    return start;
}

static void
end(Connection *to, size_t start, size_t behind)
{
    uint32_t length = htobe32((uint32_t)(to->out_size - start - 4 + behind));
    memcpy(to->out + start, &length, 4);
}

/* The log ---------------------------------------------------------------------------------------------------------- */

static void
write_log(const uint8_t *data, size_t size)
{
    while (size) {
        ssize_t written = pwrite(log_fd, data, size, log_size);
        if (written < 0)
            die("pwrite");
        log_size += written, data += written, size -= (size_t)written;
    }
}

static void
write_joined(void)
{
    write_log(joined, joined_size);
    joined_size = 0;
}

/* Append a batch, whose first eight bytes become its offset. Return that. */
static int64_t
append(uint8_t *batch, size_t size)
{
    int64_t base = next_offset;
    off_t position = log_size + (off_t)joined_size;
    uint64_t stored = htobe64((uint64_t)base);
    memcpy(batch, &stored, 8);
    if (!entry_count || position - entries[entry_count - 1].position >= INDEX_INTERVAL) {
        if (entry_count == entry_capacity) {
            entry_capacity = entry_capacity ? 2 * entry_capacity : 1024;
            if ((entries = realloc(entries, entry_capacity * sizeof *entries)) == NULL)
                die("realloc");
        }
        entries[entry_count].offset = base;
        entries[entry_count++].position = position;
    }
    if (size < JOINED) {
        memcpy(joined + joined_size, batch, size);
        joined_size += size;
    } else
        write_joined();
    if (size >= JOINED)
        write_log(batch, size);
    else if (joined_size > READ)
        write_joined();
    next_offset += (int64_t)get(batch + 23, 4) + 1;
    return base;
}

/* Return the position of a batch at or before the one with this offset. */
static off_t
position_of(int64_t offset)
{
    size_t low = 0, high = entry_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (entries[middle].offset <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? entries[low - 1].position : 0;
}

/* Requests --------------------------------------------------------------------------------------------------------- */

static void
produce(Connection *from, int version, uint32_t correlation_id, uint8_t *at)
{
    int16_t transactional = (int16_t)get(at, 2);
    at += 2 + (transactional > 0 ? transactional : 0);
    int acks = (int16_t)get(at, 2);
    at += 12 + get(at + 10, 2); /* acks, timeout, number of topics, name */
    uint32_t partition = (uint32_t)get(at + 4, 4), size = (uint32_t)get(at + 8, 4);
    int64_t base = append(at + 12, size);
    if (!acks)
        return;
    size_t start = begin(from, correlation_id);
    put(from, 1, 4);
    put_text(from, "t");
    put(from, 1, 4);
    put(from, partition, 4);
    put(from, 0, 2);
    put(from, (uint64_t)base, 8);
    put(from, UINT64_MAX, 8); /* no log append time */
    if (version >= 5)
        put(from, 0, 8); /* log start offset */
    put(from, 0, 4); /* throttle time */
    end(from, start, 0);
}

/* Answer a fetch, or have it wait. Return whether it was answered. */
static int
fetch(Connection *from, uint32_t correlation_id, const uint8_t *at)
{
    int64_t now = now_ms(), wait = (int32_t)get(at + 4, 4);
    size_t most = (size_t)get(at + 12, 4), topics = (size_t)get(at + 17, 4), count = 0;
    write_joined();
    off_t position = log_size;
    if (topics) {
        at += 23 + get(at + 21, 2);
        int64_t offset = (int64_t)get(at + 8, 8);
        size_t limit = (size_t)get(at + 16, 4);
        if (offset < next_offset)
            position = position_of(offset);
        count = (size_t)(log_size - position);
        count = count < limit ? count : limit;
        count = count < most ? count : most;
    }
    if (!count) {
        if (!from->deadline) {
            from->deadline = now + (wait < LONGEST_WAIT ? wait : LONGEST_WAIT);
            waiting++;
        }
        if (now < from->deadline)
            return 0;
    }
    waiting -= from->deadline != 0;
    from->deadline = 0;
    size_t start = begin(from, correlation_id);
    put(from, 0, 4); /* throttle time */
    put(from, topics ? 1 : 0, 4);
    if (topics) {
        put_text(from, "t");
        put(from, 1, 4);
        put(from, 0, 4 + 2); /* partition, no error */
        put(from, (uint64_t)next_offset, 8);
        put(from, (uint64_t)next_offset, 8);
        put(from, 0, 4); /* aborted transactions */
        put(from, count, 4);
    }
    end(from, start, count);
    from->slice_at = position;
    from->slice_left = count;
    return 1;
}

static void
list_offsets(Connection *from, uint32_t correlation_id, const uint8_t *at)
{
    at += 10 + get(at + 8, 2);
    uint32_t partition = (uint32_t)get(at + 4, 4);
    int64_t when = (int64_t)get(at + 8, 8);
    size_t start = begin(from, correlation_id);
    put(from, 1, 4);
    put_text(from, "t");
    put(from, 1, 4);
    put(from, partition, 4);
    put(from, 0, 2);
    put(from, UINT64_MAX, 8);
    put(from, when == -2 ? 0 : (uint64_t)next_offset, 8);
    end(from, start, 0);
}

static void
metadata(Connection *from, uint32_t correlation_id)
{
    size_t start = begin(from, correlation_id);
    put(from, 1, 4); /* one broker, number 0 */
    put(from, 0, 4);
    put_text(from, "127.0.0.1");
    put(from, (uint64_t)port, 4);
    put(from, UINT16_MAX, 2); /* no rack */
    put(from, 0, 4);          /* the controller */
    put(from, 1, 4);
    put(from, 0, 2);
    put_text(from, "t");
    put(from, 0, 1);
    put(from, 1, 4);          /* one partition: no error, number 0, leader 0, replicas [0], in-sync replicas [0] */
    put(from, 0, 2 + 4 + 4);
    put(from, 1, 4);
    put(from, 0, 4);
    put(from, 1, 4);
    put(from, 0, 4);
    end(from, start, 0);
}

static void
api_versions(Connection *from, int version, uint32_t correlation_id)
{
    static const uint16_t served[][3] = {{PRODUCE, 3, 7}, {FETCH, 4, 4}, {LIST_OFFSETS, 1, 1}, {METADATA, 1, 1},
                                         {API_VERSIONS, 0, 0}};
    size_t start = begin(from, correlation_id), count = sizeof served / sizeof served[0];
    put(from, version ? 35 : 0, 2); /* a version that is not served is answered in version 0 (KIP-511) */
    put(from, count, 4);
    for (size_t i = 0; i < count; i++)
        for (int j = 0; j < 3; j++)
            put(from, served[i][j], 2);
    end(from, start, 0);
}

/* Answer a request. Return 0 if it has to wait, -1 if its API is not served. */
static int
answer(Connection *from, uint8_t *request)
{
    int api = (int16_t)get(request, 2), version = (int16_t)get(request + 2, 2);
    uint32_t correlation_id = (uint32_t)get(request + 4, 4);
    int16_t client = (int16_t)get(request + 8, 2);
    uint8_t *body = request + 10 + (client > 0 ? client : 0);
    switch (api) {
    case PRODUCE:
        produce(from, version, correlation_id, body);
        return 1;
    case FETCH:
        return fetch(from, correlation_id, body);
    case LIST_OFFSETS:
        list_offsets(from, correlation_id, body);
        return 1;
    case METADATA:
        metadata(from, correlation_id);
        return 1;
    case API_VERSIONS:
        api_versions(from, version, correlation_id);
        return 1;
    }
    return -1;
}

/* Connections ------------------------------------------------------------------------------------------------------ */

static void
watch(Connection *one, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = one};
    if (one->events != events && epoll_ctl(epoll, EPOLL_CTL_MOD, one->fd, &event) < 0)
        die("epoll_ctl");
    one->events = events;
}

static void
drop(Connection *one)
{
    for (Connection **at = &connections; *at != NULL; at = &(*at)->next)
        if (*at == one) {
            *at = one->next;
            break;
        }
    waiting -= one->deadline != 0;
    close(one->fd);
    free(one->in);
    free(one->out);
    free(one);
}

/* Send what is due. Return 1 if all of it has left, 0 if the socket is full, -1 if the peer is gone. */
static int
send_due(Connection *to)
{
    while (to->out_at < to->out_size) {
        ssize_t sent = send(to->fd, to->out + to->out_at, to->out_size - to->out_at,
                            MSG_NOSIGNAL | (to->slice_left ? MSG_MORE : 0));
        if (sent < 0)
            return errno == EAGAIN ? 0 : -1;
        to->out_at += (size_t)sent;
    }
    to->out_at = to->out_size = 0;
    while (to->slice_left) {
        ssize_t sent = sendfile(to->fd, log_fd, &to->slice_at, to->slice_left);
        if (sent <= 0)
            return sent < 0 && errno == EAGAIN ? 0 : -1;
        to->slice_left -= (size_t)sent;
    }
    return 1;
}

/* Answer the whole requests that were received, until one waits or the socket is full. Return -1 to drop the peer. */
static int
handle(Connection *one)
{
    int sent = 1, answered = 1;
    while (sent == 1 && answered == 1 && one->in_size - one->in_at >= 4) {
        size_t length = (size_t)get(one->in + one->in_at, 4);
        if (one->in_size - one->in_at - 4 < length) {
            grow(&one->in, &one->in_capacity, length + 4);
            break;
        }
        if ((answered = answer(one, one->in + one->in_at + 4)) < 0)
            return -1;
        if (answered)
            one->in_at += 4 + length;
        if (one->slice_left)
            sent = send_due(one);
    }
    write_joined();
    if (sent == 1)
        sent = send_due(one);
    if (sent < 0)
        return -1;
    memmove(one->in, one->in + one->in_at, one->in_size - one->in_at);
    one->in_size -= one->in_at;
    one->in_at = 0;
    watch(one, !sent ? EPOLLOUT : answered ? EPOLLIN : EPOLLRDHUP);
    return 0;
}

/* Read what the peer has sent. Return -1 to drop it. */
static int
receive(Connection *one)
{
    ssize_t size = recv(one->fd, one->in + one->in_size, one->in_capacity - one->in_size, 0);
    if (size <= 0)
        return size < 0 && errno == EAGAIN ? 0 : -1;
    one->in_size += (size_t)size;
    return handle(one);
}

static void
accept_one(int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), on = 1;
    if (fd < 0)
        return;
    Connection *one = calloc(1, sizeof *one);
    if (one == NULL)
        die("calloc");
    one->fd = fd;
    one->events = EPOLLIN;
    grow(&one->in, &one->in_capacity, READ);
    one->next = connections;
    connections = one;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = one};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0)
        die("epoll_ctl");
}

/* Try the fetches that wait again. Return how long until the first of those that still wait is due, or -1. */
static int
try_waiting(void)
{
    int64_t first = -1;
    for (Connection *one = connections, *next; waiting && one != NULL; one = next) {
        next = one->next;
        if (!one->deadline)
            continue;
        if (handle(one) < 0)
            drop(one);
        else if (one->deadline && (first < 0 || one->deadline < first))
            first = one->deadline;
    }
    if (first < 0)
        return -1;
    first -= now_ms();
    return first < 0 ? 0 : (int)first;
}

static int
listen_on(int number)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)number),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0
        || bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || listen(fd, 1024) < 0)
        die("listen");
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0)
        die("epoll_ctl");
    return fd;
}

int
main(int count, char **arguments)
{
    if (count != 3 || (port = atoi(arguments[1])) <= 0 || chdir(arguments[2]) < 0) {
        fprintf(stderr, "usage: floor PORT FOLDER\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    if ((log_fd = open("floor.log", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) < 0)
        die("floor.log");
    if ((epoll = epoll_create1(EPOLL_CLOEXEC)) < 0 || (joined = malloc(READ + JOINED)) == NULL)
        die("epoll_create1");
    int listener = listen_on(port);
    struct epoll_event events[EVENTS];
    for (;;) {
        int found = epoll_wait(epoll, events, EVENTS, waiting ? try_waiting() : -1);
        for (int i = 0; i < found; i++) {
            Connection *one = events[i].data.ptr;
            if (one == NULL)
                accept_one(listener);
            else if (events[i].events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)
                     || (events[i].events & EPOLLOUT ? handle(one) : receive(one)) < 0)
                drop(one);
        }
        if (found < 0 && errno != EINTR)
            die("epoll_wait");
    }
}
