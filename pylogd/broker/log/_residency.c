/* The system call cachestat (Linux 6.5), in a third of the time that ctypes takes, and a sendfile that asks it first.
 * Optional: without it, pylogd.broker.log.residency makes the call by ctypes, and pylogd.broker.net.sender sends step by step;
 * tests/unit/broker/log/test_residency.py compares both.
 *
 * The interpreter stays locked during a mere cachestat, which only looks at the index of the file's pages and does not
 * wait.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <unistd.h>

#if defined(__linux__)
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#ifndef SYS_cachestat
#ifdef __alpha__
#define SYS_cachestat 561
#else
#define SYS_cachestat 451
#endif
#endif
#endif

PyDoc_STRVAR(pages_in_memory_doc,
             "pages_in_memory(fd, start, size, /)\n--\n\n"
             "Return how many pages of a range of a file are in memory; None if the kernel does not say.");

static PyObject *
pages_in_memory(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "pages_in_memory takes fd, start and size");
        return NULL;
    }
    long fd = PyLong_AsLong(args[0]);
    long long start = PyLong_AsLongLong(args[1]);
    long long size = PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred())
        return NULL;
#ifdef SYS_cachestat
    struct {
        uint64_t position, length;
    } range = {(uint64_t)start, (uint64_t)size};
    uint64_t found[5] = {0}; /* pages in memory, dirty, being written back, evicted, evicted recently */
    if (syscall(SYS_cachestat, (unsigned int)fd, &range, found, 0) == 0)
        return PyLong_FromUnsignedLongLong(found[0]);
#endif
    Py_RETURN_NONE;
}

#ifdef SYS_cachestat
/* Return whether a range of a file is in memory, and its last byte is not just being read from the disk. A dirty page was
 * written, so it is not being read: at the end of a log, where all pages are dirty, cachestat alone is enough. If they are
 * dirty, the file may also end before the range, in the last page.
 */
static int
is_resident(int fd, uint64_t position, uint64_t length)
{
    struct {
        uint64_t position, length;
    } range = {position, length};
    uint64_t found[5] = {0}; /* as in pages_in_memory */
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), pages = (position + length - 1) / page - position / page + 1;
    char last;
    struct iovec one = {&last, 1};
    return syscall(SYS_cachestat, (unsigned int)fd, &range, found, 0) == 0 && found[0] >= pages
           && (found[1] >= pages || preadv2(fd, &one, 1, (off_t)(position + length - 1), RWF_NOWAIT) == 1);
}
#endif

PyDoc_STRVAR(send_resident_doc,
             "send_resident(socket, head, fd, position, length, /)\n--\n\n"
             "Send bytes and, behind them, a range of a file that is in memory, as far as the socket takes them.\n\n"
             "Return how many bytes of both left; -1, with nothing sent, if the range is not in memory, or the kernel\n"
             "does not say. Errors are left to whoever sends the rest, also that the file ends before the range.");

static PyObject *
send_resident(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 5 || !PyBytes_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "send_resident takes socket, head (bytes), fd, position and length");
        return NULL;
    }
    long out = PyLong_AsLong(args[0]), fd = PyLong_AsLong(args[2]);
    long long position = PyLong_AsLongLong(args[3]), length = PyLong_AsLongLong(args[4]);
    if (PyErr_Occurred())
        return NULL;
    if (position < 0 || length <= 0 || length > PY_SSIZE_T_MAX || position > INT64_MAX - length) {
        PyErr_SetString(PyExc_ValueError, "a position or a length is out of range");
        return NULL;
    }
    ssize_t sent = -1;
#ifdef SYS_cachestat
    const char *head = PyBytes_AS_STRING(args[1]);
    ssize_t size = PyBytes_GET_SIZE(args[1]);
    Py_BEGIN_ALLOW_THREADS
    if (is_resident((int)fd, (uint64_t)position, (uint64_t)length)) {
        sent = send((int)out, head, (size_t)size, MSG_MORE | MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent == size) {
            off_t at = (off_t)position;
            ssize_t more = sendfile((int)out, (int)fd, &at, (size_t)length);
            sent += more > 0 ? more : 0;
        }
        else if (sent < 0)
            sent = 0;
    }
    Py_END_ALLOW_THREADS
#endif
    return PyLong_FromSsize_t(sent);
}

static PyMethodDef methods[] = {
    {"pages_in_memory", (PyCFunction)(void (*)(void))pages_in_memory, METH_FASTCALL, pages_in_memory_doc},
    {"send_resident", (PyCFunction)(void (*)(void))send_resident, METH_FASTCALL, send_resident_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_residency", "What of a file is in memory.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__residency(void)
{
    return PyModule_Create(&module);
}
