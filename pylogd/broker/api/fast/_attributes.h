/* Read and write attributes, as Python does, but without its search for those that are slots (`__slots__`); and declare
 * which attributes and constants of other modules a compiled module uses.
 *
 * The file that includes this defines CLASSES and CONSTANTS first: see `_repeated.c`. A class is
 * CLASS(field, TABLE, name), where the table lists its attributes.
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

/* Declarations: a field for each attribute, `state->of.<class>.<attribute>`, and the module's `USES` and `CONSTANTS` ---- */

#define DECLARE_ATTRIBUTE(name) Attribute name;
#define DECLARE_CLASS(field, TABLE, class) \
    struct { \
        TABLE(DECLARE_ATTRIBUTE, DECLARE_ATTRIBUTE) \
    } field;
typedef struct {
    CLASSES(DECLARE_CLASS)
} Attributes;

#define NAME_ATTRIBUTE(name) #name,
#define NAME_CLASS(field, TABLE, class) TABLE(NAME_ATTRIBUTE, NAME_ATTRIBUTE)
/* The names of the fields of `Attributes`, in their order. */
static const char *const attribute_names[] = {CLASSES(NAME_CLASS)};
enum { ATTRIBUTES = sizeof attribute_names / sizeof *attribute_names };
_Static_assert(sizeof(Attributes) == ATTRIBUTES * sizeof(Attribute), "Attributes has one Attribute for each name");

#define WORD(name) #name " "
#define NO_WORD(name)
#define USE_CLASS(field, TABLE, class) {class, "" TABLE(WORD, NO_WORD), "" TABLE(NO_WORD, WORD)},
static const struct {
    const char *name, *slots, *others;
} uses[] = {CLASSES(USE_CLASS)};

#define USE_CONSTANT(value, name) {name, value},
static const struct {
    const char *name;
    double value;
} constants[] = {CONSTANTS(USE_CONSTANT)};

static int
intern_names(Attributes *of)
{
    Attribute *attributes = (Attribute *)of;
    for (int i = 0; i < ATTRIBUTES; i++)
        if ((attributes[i].name = PyUnicode_InternFromString(attribute_names[i])) == NULL)
            return -1;
    return 0;
}

static void
forget_names(Attributes *of)
{
    Attribute *attributes = (Attribute *)of;
    for (int i = 0; i < ATTRIBUTES; i++)
        Py_CLEAR(attributes[i].name);
}

/* Add an item to a list; the item is taken. Return -1 with an exception. */
static int
append_to(PyObject *list, PyObject *item)
{
    int failed = item == NULL || PyList_Append(list, item) < 0;
    Py_XDECREF(item);
    return failed ? -1 : 0;
}

/* Add to the module what pylogd.base.compiled compares: `USES`, a list of (class, slots, other attributes), with a space
 * behind each attribute; and `CONSTANTS`, a list of (name, value).
 */
static int
declare_uses(PyObject *module)
{
    PyObject *classes = PyList_New(0), *numbers = PyList_New(0);
    int failed = classes == NULL || numbers == NULL;
    for (size_t i = 0; !failed && i < sizeof uses / sizeof *uses; i++)
        failed = append_to(classes, Py_BuildValue("sss", uses[i].name, uses[i].slots, uses[i].others)) < 0;
    for (size_t i = 0; !failed && i < sizeof constants / sizeof *constants; i++)
        failed = append_to(numbers, Py_BuildValue("sd", constants[i].name, constants[i].value)) < 0;
    failed = failed || PyModule_AddObjectRef(module, "USES", classes) < 0
             || PyModule_AddObjectRef(module, "CONSTANTS", numbers) < 0;
    Py_XDECREF(classes);
    Py_XDECREF(numbers);
    return failed ? -1 : 0;
}
