/* A client with many active connections, for loads/active.py.
 *
 *   connections HOST PORT CONNECTIONS TOGETHER FILE ERROR
 *
 * FILE has one Produce request, as it is sent; ERROR is where an answer, its length included, has its error. The client
 * connects, and for each number that it reads from its standard input it has at least so many requests answered, by all
 * connections together: each connection sends the request TOGETHER times at once, waits for all answers, and goes on.
 * So the broker finds the same number of requests in each read, however many connections there are. For each number a
 * line of JSON is printed as client.c does it, with a message for each request and no bytes. An error in an answer, and
 * 30 seconds without an answer, end it.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HEAD = 32, READ = 1 << 16, EVENTS = 256 };

typedef struct Connection {
    int fd;
    int due;         /* answers that are missing */
    uint32_t size;   /* of the answer that is being received, 0 if its length is not known */
    uint32_t got;    /* bytes of it, its length included */
    uint8_t head[HEAD];
} Connection;

static char *group;
static size_t group_size;
static int together;
static uint32_t error_at;
static long long left, answered;

static void die(const char *what) {
    fprintf(stderr, "connections: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void load_group(const char *path) {
    char request[READ];
    FILE *file = fopen(path, "r");
    size_t size = file ? fread(request, 1, sizeof request, file) : 0;
    if (!size || (group = malloc(size * (size_t)together)) == NULL)
        die(path);
    for (int i = 0; i < together; i++)
        memcpy(group + size * (size_t)i, request, size);
    group_size = size * (size_t)together;
    fclose(file);
}

/* Send the next group, if requests are left. A group fits into the socket's buffer, which is empty. */
static void send_group(Connection *one) {
    if (left <= 0)
        return;
    left -= together;
    one->due = together;
    if (send(one->fd, group, group_size, MSG_NOSIGNAL) != (ssize_t)group_size)
        die("send");
}

static void take(Connection *one, const uint8_t *data, size_t size) {
    while (size) {
        uint32_t end = one->got < 4 ? 4 : one->size, part;
        part = size < end - one->got ? (uint32_t)size : end - one->got;
        for (uint32_t i = 0; i < part && one->got + i < HEAD; i++)
            one->head[one->got + i] = data[i];
        one->got += part, data += part, size -= part;
        if (one->got == 4)
            one->size = 4 + ((uint32_t)one->head[0] << 24 | one->head[1] << 16 | one->head[2] << 8 | one->head[3]);
        if (one->got < 4 || one->got < one->size)
            continue;
        if (one->size < error_at + 2 || one->head[error_at] || one->head[error_at + 1]) {
            fprintf(stderr, "connections: an answer has error %d\n", one->head[error_at] << 8 | one->head[error_at + 1]);
            exit(1);
        }
        one->got = one->size = 0;
        answered++;
        if (!--one->due)
            send_group(one);
    }
}

/* Have requests answered. */
static void run(int epoll, Connection *all, int connections, long long wanted) {
    static uint8_t data[READ];
    struct epoll_event events[EVENTS];
    double began = now();
    left = wanted;
    answered = 0;
    for (int i = 0; i < connections; i++)
        send_group(&all[i]);
    while (answered < wanted) {
        int found = epoll_wait(epoll, events, EVENTS, 30000);
        if (found <= 0) {
            errno = found ? errno : ETIMEDOUT;
            die("answers");
        }
        for (int i = 0; i < found; i++) {
            Connection *one = events[i].data.ptr;
            ssize_t size = recv(one->fd, data, sizeof data, 0);
            if (size > 0)
                take(one, data, (size_t)size);
            else if (!size || errno != EAGAIN)
                die(size ? "recv" : "the broker closed a connection");
        }
    }
    printf("{\"messages\": %lld, \"bytes\": 0, \"seconds\": %.6f, \"began\": %.6f}\n", answered, now() - began, began);
    fflush(stdout);
}

int main(int count, char **arguments) {
    if (count != 7 || (error_at = (uint32_t)atoi(arguments[6])) > HEAD - 2) {
        fprintf(stderr, "usage: connections HOST PORT CONNECTIONS TOGETHER FILE ERROR\n");
        return 2;
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(arguments[2]))};
    int connections = atoi(arguments[3]), epoll = epoll_create1(EPOLL_CLOEXEC), on = 1;
    Connection *all = calloc((size_t)connections, sizeof *all);
    long long wanted;
    together = atoi(arguments[4]);
    load_group(arguments[5]);
    if (inet_pton(AF_INET, arguments[1], &address.sin_addr) != 1 || epoll < 0 || all == NULL)
        die("start");
    for (int i = 0; i < connections; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &all[i]};
        if ((all[i].fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) < 0
            || connect(all[i].fd, (struct sockaddr *)&address, sizeof address) < 0
            || setsockopt(all[i].fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) < 0
            || fcntl(all[i].fd, F_SETFL, O_NONBLOCK) < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, all[i].fd, &event) < 0)
            die("connect");
    }
    while (scanf("%lld", &wanted) == 1)
        run(epoll, all, connections, wanted);
    return 0;
}
