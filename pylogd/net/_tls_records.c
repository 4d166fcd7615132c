/* Call OpenSSL's SSL_read for one record after the other. Optional: without it, pylogd.net.tls_records calls it from
 * Python, which takes half a microsecond longer for each record; tests/unit/net/test_tls_records.py compares both.
 *
 * OpenSSL is a part of the package cryptography, and its functions can't be linked to: the caller passes addresses.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <limits.h>

typedef int (*ssl_read)(void *ssl, void *buffer, int size);

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

static PyMethodDef methods[] = {
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
