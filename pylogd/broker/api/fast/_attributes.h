/* Read and write attributes, as Python does, but without its search for those that are slots (`__slots__`).
 *
 * Strategy: an inline cache, as the interpreter has one for each place in its bytecode: for each name, it keeps the
 * class of the object that was asked last, and where the slot is in its instances. A class has a new version, or none,
 * once it or a class that it inherits from has changed, so that nothing outdated is used.
 *
 * Rules: what is no slot of exactly this kind, or has no value, is left to PyObject_GetAttr and PyObject_SetAttr.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

/* type: the class that was asked last, NULL if none can be kept; only compared, never used. offset: of the slot in its
 * instances, 0 if the attribute is no slot.
 */
typedef struct {
    PyObject *name;
    const PyTypeObject *type;
    unsigned int version;
    Py_ssize_t offset;
} Attribute;

/* Find out whether an attribute of the instances of a class is a slot. An exception that is set stays set. */
static void
learn(PyTypeObject *type, Attribute *attribute)
{
    PyObject *kind, *error, *trace, *found = NULL;
    PyErr_Fetch(&kind, &error, &trace);
    if (type->tp_getattro == PyObject_GenericGetAttr && type->tp_setattro == PyObject_GenericSetAttr)
        found = PyObject_GetAttr((PyObject *)type, attribute->name);
    attribute->offset = 0;
    if (found != NULL && Py_IS_TYPE(found, &PyMemberDescr_Type) && PyType_IsSubtype(type, PyDescr_TYPE(found))) {
        const PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
        if (member->type == T_OBJECT_EX && member->flags == 0)
            attribute->offset = member->offset;
    }
    Py_XDECREF(found);
    attribute->version = type->tp_version_tag;
    attribute->type = attribute->version ? type : NULL;
    PyErr_Restore(kind, error, trace);
}

/* Return where the value of an attribute is, NULL if it is no slot. */
static inline PyObject **
slot_of(PyObject *of, Attribute *attribute)
{
    PyTypeObject *type = Py_TYPE(of);
    if (type != attribute->type || type->tp_version_tag != attribute->version)
        learn(type, attribute);
    return attribute->offset ? (PyObject **)((char *)of + attribute->offset) : NULL;
}

/* Return an attribute, which is the caller's; NULL with an exception. */
static inline PyObject *
get(PyObject *of, Attribute *attribute)
{
    PyObject **slot = slot_of(of, attribute);
    return slot == NULL || *slot == NULL ? PyObject_GetAttr(of, attribute->name) : Py_NewRef(*slot);
}

/* Set an attribute. Return -1 with an exception. */
static inline int
set(PyObject *of, Attribute *attribute, PyObject *value)
{
    PyObject **slot = slot_of(of, attribute), *before;
    if (slot == NULL || (before = *slot) == NULL)
        return PyObject_SetAttr(of, attribute->name, value);
    *slot = Py_NewRef(value);
    Py_DECREF(before);
    return 0;
}
