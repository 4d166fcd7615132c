/* Call OpenSSL's SSL_read for one record after the other, and read the socket for them. Optional: without it,
 * pylogd.link.tls_records does the same from Python, which takes half a microsecond longer for each record, and ten for
 * each piece that is read; tests/unit/link/test_tls_records.py compares both.
 *
 * OpenSSL is a part of the package cryptography, and its functions can't be linked to: the caller passes addresses.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <limits.h>
#include <sys/socket.h>

typedef int (*ssl_read)(void *ssl, void *buffer, int size);
typedef int (*ssl_get_error)(const void *ssl, int result);
typedef int (*ssl_write)(void *ssl, const void *data, int size);
typedef int (*bio_read)(void *bio, void *buffer, int size);
typedef int (*bio_write)(void *bio, const void *data, int size);

#define SSL_ERROR_WANT_READ 2 /* of OpenSSL's interface */
#define RECORD_BYTES 16384    /* the most plain bytes in a record */
#define PART_BYTES 65536      /* encrypted at a time: little enough for the processor's cache */

PyDoc_STRVAR(read_records_doc,
             "read_records(function, ssl, buffer, most, /)\n--\n\n"
             "Decrypt into buffer until most bytes are there, or OpenSSL has no more.\n\n"
             "function: the address of SSL_read. ssl: that of its first argument. Return the number of bytes, and what\n"
             "the last call returned: 0 or less if OpenSSL has no more.");

static PyObject *
read_records(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "read_records takes function, ssl, buffer and most");
        return NULL;
    }
    ssl_read read = (ssl_read)PyLong_AsVoidPtr(args[0]);
    void *ssl = PyLong_AsVoidPtr(args[1]);
    Py_ssize_t most = PyLong_AsSsize_t(args[3]);
    if (PyErr_Occurred())
        return NULL;
    if (read == NULL || ssl == NULL) {
        PyErr_SetString(PyExc_ValueError, "an address is 0");
        return NULL;
    }
    Py_buffer view;
    if (PyObject_GetBuffer(args[2], &view, PyBUF_WRITABLE) < 0)
        return NULL;
    if (most > view.len)
        most = view.len;
    Py_ssize_t got = 0;
    int size = 1;
    Py_BEGIN_ALLOW_THREADS /* callbacks of the connection lock the interpreter themselves */
    while (got < most) {
        size = read(ssl, (char *)view.buf + got, most - got > INT_MAX ? INT_MAX : (int)(most - got));
        if (size <= 0)
            break;
        got += size;
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    return Py_BuildValue("ni", got, size);
}

/* Take the addresses of `count` functions from a tuple, and those of two objects behind it. Return 0 if there are not
 * so many, or one is 0.
 */
static int
take_addresses(PyObject *const *args, void **addresses, int count)
{
    if (!PyTuple_Check(args[0]) || PyTuple_GET_SIZE(args[0]) != count)
        return 0;
    for (int at = 0; at < count + 2; at++) {
        addresses[at] = PyLong_AsVoidPtr(at < count ? PyTuple_GET_ITEM(args[0], at) : args[at - count + 1]);
        if (addresses[at] == NULL)
            return 0;
    }
    return 1;
}

static PyObject *
wrong_arguments(void)
{
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "an argument is missing, or an address is 0");
    return NULL;
}

PyDoc_STRVAR(receive_records_doc,
             "receive_records(functions, ssl, bio, socket, buffer, most, received, limit, /)\n--\n\n"
             "Decrypt into buffer until most bytes are there, reading the socket whenever OpenSSL has no more.\n\n"
             "functions: the addresses of SSL_read, SSL_get_error and BIO_write. ssl, bio: those of the connection and\n"
             "of what it reads from. socket: a descriptor. received: the memory that the socket is read into.\n"
             "Nothing is read from it once limit bytes are. Return the number of bytes, what the last SSL_read\n"
             "returned, and how many bytes the socket gave.");

static PyObject *
receive_records(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    void *addresses[5]; /* SSL_read, SSL_get_error, BIO_write, ssl, bio */
    if (count != 8 || !take_addresses(args, addresses, 3))
        return wrong_arguments();
    ssl_read read = (ssl_read)addresses[0];
    ssl_get_error get_error = (ssl_get_error)addresses[1];
    bio_write write = (bio_write)addresses[2];
    void *ssl = addresses[3], *bio = addresses[4];
    int source = (int)PyLong_AsLong(args[3]);
    Py_ssize_t most = PyLong_AsSsize_t(args[5]), limit = PyLong_AsSsize_t(args[7]);
    Py_buffer view, received;
    if (PyErr_Occurred() || PyObject_GetBuffer(args[4], &view, PyBUF_WRITABLE) < 0)
        return NULL;
    if (PyObject_GetBuffer(args[6], &received, PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(&view);
        return NULL;
    }
    if (most > view.len)
        most = view.len;
    Py_ssize_t got = 0, taken = 0;
    int size = 1;
    Py_BEGIN_ALLOW_THREADS /* callbacks of the connection lock the interpreter themselves */
    while (got < most) {
        size = read(ssl, (char *)view.buf + got, most - got > INT_MAX ? INT_MAX : (int)(most - got));
        if (size > 0) {
            got += size;
            continue;
        }
        if (taken >= limit || get_error(ssl, size) != SSL_ERROR_WANT_READ)
            break;
        Py_ssize_t wanted = most - got + RECORD_BYTES;
        Py_ssize_t came = recv(source, received.buf, wanted < received.len ? wanted : received.len, MSG_DONTWAIT);
        if (came <= 0 || write(bio, received.buf, (int)came) != came)
            break; /* the reactor finds out why */
        taken += came;
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    PyBuffer_Release(&received);
    return Py_BuildValue("nin", got, size, taken);
}

PyDoc_STRVAR(send_records_doc,
             "send_records(functions, ssl, bio, socket, data, encrypted, /)\n--\n\n"
             "Encrypt data and send it, until all has left, the socket takes no more, or OpenSSL refuses.\n\n"
             "functions: the addresses of SSL_write and BIO_read. ssl, bio: those of the connection and of what it\n"
             "writes to, which is empty. socket: a descriptor. encrypted: memory for encrypted bytes, larger than\n"
             "64 KB. Return how many bytes were encrypted, and those encrypted bytes that the socket did not take.");

static PyObject *
send_records(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    void *addresses[4]; /* SSL_write, BIO_read, ssl, bio */
    if (count != 6 || !take_addresses(args, addresses, 2))
        return wrong_arguments();
    ssl_write write = (ssl_write)addresses[0];
    bio_read read = (bio_read)addresses[1];
    int target = (int)PyLong_AsLong(args[3]);
    Py_buffer data, encrypted;
    if (PyErr_Occurred() || PyObject_GetBuffer(args[4], &data, PyBUF_SIMPLE) < 0)
        return NULL;
    if (PyObject_GetBuffer(args[5], &encrypted, PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(&data);
        return NULL;
    }
    Py_ssize_t written = 0, size = 0, sent = 0;
    Py_BEGIN_ALLOW_THREADS /* as above */
    while (written < data.len && sent == size) {
        Py_ssize_t part = data.len - written < PART_BYTES ? data.len - written : PART_BYTES;
        int taken = write(addresses[2], (char *)data.buf + written, (int)part);
        if (taken <= 0)
            break;
        written += taken; /* a record only, if the connection writes in parts */
        while (sent == size && (size = read(addresses[3], encrypted.buf, (int)encrypted.len)) > 0) {
            sent = send(target, encrypted.buf, size, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (sent < 0)
                sent = 0; /* full, or broken: the reactor finds out which */
        }
        if (size <= 0) /* all of it has left */
            size = sent = 0;
    }
    Py_END_ALLOW_THREADS
    PyObject *rest = PyBytes_FromStringAndSize((char *)encrypted.buf + sent, size - sent);
    PyBuffer_Release(&data);
    PyBuffer_Release(&encrypted);
    return Py_BuildValue("nN", written, rest);
}

static PyMethodDef methods[] = {
    {"send_records", (PyCFunction)(void (*)(void))send_records, METH_FASTCALL, send_records_doc},
    {"receive_records", (PyCFunction)(void (*)(void))receive_records, METH_FASTCALL, receive_records_doc},
    {"read_records", (PyCFunction)(void (*)(void))read_records, METH_FASTCALL, read_records_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_tls_records", "Many records of TLS in one call.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__tls_records(void)
{
    return PyModule_Create(&module);
}
