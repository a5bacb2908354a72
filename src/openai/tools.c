#include "tools.h"

#include "json_in.h"

static bool refuse(struct error *error, size_t number, const char *what) {
    return error_set(error, ERROR_ARGUMENT, "tools", "tools: tool %zu: %s", number + 1, what);
}

static bool is_name(const json_t *value) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    const char *name = json_string_value(value);
    size_t length = json_string_length(value);
    return name && length > 0 && length <= TOOL_NAME_BYTES && strspn(name, letters) == length;
}

static bool is_given(const json_t *value) {
    return value && !json_is_null(value);
}

static bool read_tool(struct openai_tools *tools, size_t number, const json_t *tool, struct error *error) {
    const json_t *function = json_object_get(tool, "function"), *name = json_object_get(function, "name");
    const json_t *parameters = json_object_get(function, "parameters"), *strict = json_object_get(function, "strict");
    if (!json_in_is(json_object_get(tool, "type"), "function") || !json_is_object(function))
        return refuse(error, number, "expected {\"type\": \"function\", \"function\": {\"name\", ...}}");
    if (!is_name(name))
        return refuse(error, number, "expected a name of 1 to 64 letters, digits, '_', '-' and '.'");
    if (is_given(parameters) && !json_is_object(parameters))
        return refuse(error, number, "parameters: expected an object, a JSON schema");
    if (is_given(strict) && !json_is_boolean(strict))
        return refuse(error, number, "strict: expected true or false");
    tools->items[number] = (struct call_tool){.name = json_string_value(name),
                                              .parameters = is_given(parameters) ? parameters : NULL,
                                              .is_strict = json_is_true(strict),
                                              .number = number};
    return true;
}

static int compare_tools(const void *a, const void *b) {
    const struct call_tool *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static bool check_names(const struct openai_tools *tools, struct error *error) {
    const struct call_tool **sorted = malloc((tools->count + 1) * sizeof *sorted);
    const char *twice = NULL;
    if (!sorted)
        return error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
    for (size_t i = 0; i < tools->count; i++)
        sorted[i] = &tools->items[i];
    qsort(sorted, tools->count, sizeof *sorted, compare_tools);
    for (size_t i = 1; i < tools->count; i++)
        if (!strcmp(sorted[i - 1]->name, sorted[i]->name))
            twice = sorted[i]->name;
    free(sorted);
    return !twice || error_set(error, ERROR_ARGUMENT, "tools", "tools: there are two tools \"%s\"", twice);
}

static bool read_list(struct openai_tools *tools, const json_t *list, struct error *error) {
    size_t count = json_array_size(list);
    if (!json_is_array(list) || count > TOOL_MOST)
        return error_set(error, ERROR_ARGUMENT, "tools", "tools: expected a list of at most %d tools", TOOL_MOST);
    tools->items = calloc(count + 1, sizeof *tools->items);
    if (!tools->items)
        return error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
    for (; tools->count < count; tools->count++)
        if (!read_tool(tools, tools->count, json_array_get(list, tools->count), error))
            return false;
    return check_names(tools, error);
}

/* ---- the choice ---- */

/* Finds the tool that an entry {"type": "function", "function": {"name"}} or {"type": "function", "name"} names. */
static bool find_tool(const struct openai_tools *tools, const json_t *entry, size_t *number, struct error *error) {
    const json_t *function = json_object_get(entry, "function");
    const json_t *name = json_object_get(function ? function : entry, "name");
    if (!json_in_is(json_object_get(entry, "type"), "function") || !json_is_string(name))
        return error_set(error, ERROR_ARGUMENT, "tool_choice",
                         "tool_choice: expected {\"type\": \"function\", \"function\": {\"name\"}}");
    for (size_t i = 0; i < tools->count; i++)
        if (json_in_is(name, tools->items[i].name)) {
            *number = i;
            return true;
        }
    return error_set(error, ERROR_ARGUMENT, "tool_choice", "tool_choice: there is no tool \"%.64s\"",
                     json_string_value(name));
}

static bool read_mode(struct openai_tools *tools, const json_t *mode, struct error *error) {
    bool is_required = json_in_is(mode, "required");
    if (!is_required && !json_in_is(mode, "auto"))
        return error_set(error, ERROR_ARGUMENT, "tool_choice", "tool_choice: mode: expected \"auto\" or \"required\"");
    tools->choice = is_required ? TOOLS_REQUIRED : TOOLS_AUTO;
    return true;
}

/* Reads {"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}, or mode and tools beside the type. */
static bool read_allowed(struct openai_tools *tools, const json_t *choice, struct error *error) {
    const json_t *inner = json_object_get(choice, "allowed_tools"), *given = inner ? inner : choice;
    const json_t *list = json_object_get(given, "tools"), *entry;
    size_t i, number, kept = 0;
    bool is_right = read_mode(tools, json_object_get(given, "mode"), error), *is_allowed;
    if (is_right && (!json_is_array(list) || !json_array_size(list)))
        return error_set(error, ERROR_ARGUMENT, "tool_choice", "tool_choice: tools: expected a list, at least one");
    if (!is_right || !(is_allowed = calloc(tools->count + 1, sizeof *is_allowed)))
        return is_right ? error_set(error, ERROR_OVERLOADED, NULL, "out of memory") : false;
    json_array_foreach(list, i, entry) {
        is_right = is_right && find_tool(tools, entry, &number, error);
        if (is_right)
            is_allowed[number] = true;
    }
    for (i = 0; i < tools->count; i++)
        if (is_allowed[i])
            tools->items[kept++] = tools->items[i];
    free(is_allowed);
    tools->count = kept;
    return is_right;
}

static bool read_choice(struct openai_tools *tools, const json_t *choice, struct error *error) {
    static const char *const names[] = {"none", "auto", "required"};
    size_t number;
    for (int i = 0; i < 3; i++)
        if (json_in_is(choice, names[i])) {
            tools->choice = (enum tool_choice)i;
            return true;
        }
    if (!json_is_object(choice))
        return error_set(error, ERROR_ARGUMENT, "tool_choice",
                         "tool_choice: expected \"none\", \"auto\", \"required\", or an object");
    if (json_in_is(json_object_get(choice, "type"), "allowed_tools"))
        return read_allowed(tools, choice, error);
    if (!find_tool(tools, choice, &number, error))
        return false;
    tools->items[0] = tools->items[number];
    tools->count = 1;
    tools->choice = TOOLS_REQUIRED;
    tools->is_single = true;
    return true;
}

bool openai_tools_read(struct openai_tools *tools, const json_t *list, const json_t *choice, const json_t *parallel,
                       struct error *error) {
    bool may_repeat = true;
    *tools = (struct openai_tools){.choice = TOOLS_AUTO, .schema = "function.parameters"};
    if (is_given(list) && !read_list(tools, list, error))
        return false;
    if (!json_in_bool(parallel, "parallel_tool_calls", &may_repeat, error))
        return false;
    tools->is_single = !may_repeat;
    if (is_given(choice) && !read_choice(tools, choice, error))
        return false;
    if (tools->choice == TOOLS_REQUIRED && !tools->count)
        return error_set(error, ERROR_ARGUMENT, "tool_choice", "tool_choice: the request has no tools");
    if (!tools->count)
        tools->choice = TOOLS_NONE;
    return true;
}

void openai_tools_free(struct openai_tools *tools) {
    free(tools->items);
    *tools = (struct openai_tools){0};
}
