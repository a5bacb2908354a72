#!/usr/bin/env python3
"""Small templates rendered by Jinja2 as `transformers` sets it up, for tests/jinja/jinja_test.c.

    python tools/golden/jinja.py tests/jinja/golden/cases.json        (transformers 5.23.0, jinja2 3.1.6)

A case is a template, its arguments where they are not ARGUMENTS, and its text; or "error": it fails, at the line that
Jinja2 tells of syntax errors.
"""
import json
import sys

import jinja2
import transformers
from transformers.utils.chat_template_utils import _compile_jinja_template

ARGUMENTS = {
    "s": "Hello, World",
    "u": "  naïve ÉCOLE ß\u00a0不觉 😀\t\n",
    "e": "",
    "n": 7,
    "z": 0,
    "f": 2.5,
    "t": True,
    "nothing": None,
    "l": [3, 1, 2],
    "words": ["pear", "Apple", "fig", "apple"],
    "d": {"b": 1, "a": [1, 2.0, None, True], "items": "x", "C": {"k": "v"}},
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " Hi \n", "n": 2},
        {"role": "assistant", "content": "Yo", "tool_calls": [{"name": "f", "arguments": {"x": 1, "y": "é\"<'"}}], "n": 1},
    ],
}

# expressions: each is printed
EXPRESSIONS = """
1 + 2 * 3 - 4
7 / 2
6 / 2
7 // 2
-7 // 2
7 % 3
-7 % 3
7 % -3
-7.5 // 2
7.5 % 2
2 ** 10
2 ** -1
2 ** 3 ** 2
-2 ** 2
+n
- n
- f
1e3
1_000
1.5e-7
1e16
1e15
123456789.123
0.1 + 0.2
1e22
1.0
100.0 / 3
5e-324
0.0001
0.00001
-0.0
1e400
(1e400 - 1e400)
true + true
t + 1
1 == 1.0
1 == true
'1' == 1
[1, 2] == [1, 2]
[1, 2] == (1, 2)
{'a': 1} == {'a': 1.0}
none == none
nope == nope2
nope == none
1 < 2 < 3
1 < 3 < 2
3 > 2 >= 2 != 1
'a' < 'b'
'Z' < 'a'
'é' > 'z'
[1, 2] < [1, 3]
1 < 'a'
none < 1
1 in l
9 in l
9 not in l
'ell' in s
'' in s
1 in s
'b' in d
'z' in d
'x' in nope
not nope
not not s
s and n
e and n
e or n
nope or 'x'
z or nothing or 'last'
1 if t else 2
1 if z else 2
1 if z
(1 if z) is undefined
'a' if z else 'b' if t else 'c'
s ~ n ~ f ~ nothing ~ t ~ nope
1 ~ 2 + 3
'a' 'b' "c"
'it\\'s'
"tab\\tnew\\nline\\\\ \\x41 \\u00e9 \\U0001f600 \\101"
'\\q'
'\\d+'
s[0]
s[-1]
s[99]
s[0:5]
s[:5]
s[5:]
s[-5:]
s[::-1]
s[::2]
s[10:2:-3]
u[2:7]
u[-4]
l[1:]
l[:-1]
l[::-1]
l[5:]
l[0]
l[-1]
l[7]
l['x']
l.0
messages[1:]|length
messages[0].role
messages[0]['role']
messages[-1].tool_calls[0].arguments.x
messages[0].nope
messages[0].nope.nope
messages[0]['nope']['nope']
nope.nope
nope[0]
nope[1:]
nope
nope()
nope + 1
1 + nope
'a' + nope
nope ~ 'a'
nope|length
-nope
s.nope
s.upper().lower()
d.a
d.b
d['items']
d.items()
d.keys()
d.values()
d.keys()|list
d.get('b')
d.get('zz')
d.get('zz', 5)
d.nope is defined
d.update
d.update is defined
d.update()
l.append(4)
l.append is defined
d.C.k
{'a': 1}.a
{'a': 1, 'b': [1, 'x', None, true, 1.5]}
{1: 2, none: 3, true: 4}
{'a': 1, 'a': 2}
{}
[]
()
(1,)
(1, 2)
1, 2
[1, 'it\\'s', "q\\"q", 'é\\n', '\\x00', '\\u200b', none, undefined_name]
['\u0378', '\ue000', '\u00a0', '\u3000', '\u2028', '\ufdd0', '\u0600', '\u0605', '\u00ad', '\U000e0001', '\U0010ffff', '\u0301', '\u20ac']
('a',)
[[1], {'k': (1,)}]
"both ' and \\""|list|first
['both \\' and "']
'a' * 3
3 * 'ab'
'a' * -1
[1] * 2
[1] + [2]
(1,) + (2,)
[1] + (2,)
'a' + 1
'1' + 1
1 + '1'
none + 1
5 / 0
5 // 0
5 % 0
5.0 % 0
range(3)|list
range(1, 10, 3)|list
range(5, 0, -2)|list
range(3)|length
range(3)[1]
range(0)|list
range(100001)|list
range(1.5)
range(1, 2, 0)
dict(a=1, b=2)
dict({'a': 1}, b=2)
dict([('a', 1)])
dict(d)|length
namespace(a=1).a
namespace(a=1).b
namespace(a=1)['a']
namespace({'x': 2}).x
s.split(', ')
s.split()
' a  b c '.split()
' a  b c '.split(' ')
'a,b,c,d'.split(',', 2)
'a b  c d '.split(none, 2)
'a,b,c,d'.rsplit(',', 1)
'abc'.split('')
'a\\nb\\r\\nc\\n'.splitlines()
''.split(',')
''.split()
u.strip()
' x '.strip() ~ '|'
' x '.lstrip() ~ '|'
' x '.rstrip() ~ '|'
'xxaxx'.strip('x')
'<think>a</think>'.strip('<>kniht/')
'\\nabc\\n'.lstrip('\\n').rstrip('\\n')
'ééaéé'.strip('é')
'\\u2003x\\u3000'.strip()
s.startswith('Hell')
s.startswith(('x', 'H'))
s.endswith('World')
s.endswith(['World'])
s.replace('l', 'L')
s.replace('l', 'L', 1)
'aaa'.replace('aa', 'b')
'abc'.replace('', '-')
s.find('o')
s.rfind('o')
s.find('zz')
'不觉觉'.find('觉')
s.count('l')
'aaaa'.count('aa')
s.title()
"they're bill's friends".title()
u.upper()
u.lower()
u.title()
u.capitalize()
'ΑΣ ΑΣΑ'.lower()
'ǆ'.title()
'ŉ'.upper()
'abc'.removeprefix('a').removesuffix('c')
','.join(['a', 'b'])
','.join([1, 2])
'12'.isdigit()
''.isdigit()
'{} and {}'.format(1, 'x')
'{1}{0}{1}'.format('a', 'b')
'{a}-{b}'.format(a=1, b=none)
'{{}}'.format()
'{}'.format()
l.index(2)
l.index(9)
l.count(1)
s|upper
s|lower
u|title
"foo-bar (baz) [qux] it's"|title
'hELLO wORLD'|capitalize
u|trim
u|trim ~ '|'
'--x--'|trim('-')
n|string + '!'
nope|upper ~ '|'
nothing|string
nothing|upper
l|string
s|length
u|length
d|length
n|length
l|first
l|last
[]|first
[]|last is undefined
''|first
s|first
s|last
d|first
d|last
nope|first
l|join
l|join(', ')
words|join('-')
messages|join(', ', attribute='role')
s|join('.')
[1, none, true, 1.5, 'x', nope]|join('|')
nope|default('x')
nothing|default('x')
nothing|default('x', true)
e|default('x', boolean=true)
nope|d
nope|default
z|default(5)
l|sort
words|sort
words|sort(case_sensitive=true)
words|sort(reverse=true)
messages|sort(attribute='role')|map(attribute='role')|list
messages[1:]|sort(attribute='n')|map(attribute='role')|list
[1, 'a']|sort
l|min
l|max
words|min
[]|max
l|sum
[1.5, 2]|sum
messages[1:]|sum(attribute='n')
[]|sum
[[1], [2]]|sum(start=[])
['a']|sum
l|reverse|list
s|reverse
l|list
s|list
d|list
nope|list
n|list
d|items|list
nope|items|list
d|dictsort
d.C|dictsort
{'b': 1, 'A': 3, 'c': 2}|dictsort
{'b': 1, 'A': 3, 'c': 2}|dictsort(true)
{'b': 1, 'A': 3, 'c': 2}|dictsort(by='value')
{'b': 1, 'A': 3, 'c': 2}|dictsort(reverse=true)
words|unique|list
words|unique(true)|list
[1, 1.0, true, 2]|unique|list
[[1]]|unique|list
messages|map(attribute='role')|list
messages|map(attribute='n', default=0)|list
messages|map(attribute='n')|list
messages|map(attribute='tool_calls.0.name')|list
words|map('upper')|list
words|map('replace', 'p', 'P')|join(',')
words|map('nope')|list
words|map|list
l|select|list
[0, 1, '', 'a']|select|list
l|select('odd')|list
l|reject('odd')|list
l|select('greaterthan', 1)|list
l|select('in', [1, 2])|list
l|select('nope')|list
messages|selectattr('role', 'equalto', 'user')|list|length
messages|selectattr('role', '==', 'user')|map(attribute='content')|first
messages|selectattr('tool_calls')|list|length
messages|selectattr('tool_calls', 'defined')|list|length
messages|rejectattr('role', 'eq', 'user')|map(attribute='role')|join
messages|rejectattr('role', 'in', ['user', 'system'])|list|length
messages|selectattr('role', 'equalto', 'user')|length
messages|selectattr('role', 'equalto', 'nobody') and 'true'
messages|selectattr('role', 'equalto', 'nobody')|first is defined
(messages|map(attribute='role')) is sequence
(messages|map(attribute='role')) is iterable
'3'|int
'3.7'|int
' 12 '|int
'1_000'|int
'x'|int
'x'|int(9)
''|int
3.9|int
-3.9|int
true|int
none|int
[]|int(4)
'1e3'|int
'0x10'|int
'3.5'|float
'x'|float
'x'|float(1.5)
n|float
'inf'|float
'nan'|float
-5|abs
(-5)|abs
(-2.5)|abs
'x'|abs
2.5|round
3.5|round
2.675|round(2)
42.55|round(1, 'floor')
42.55|round(1, 'ceil')
42|round
2.5|round|int
1234.5678|round(2)
s|replace('l', 'L')
s|replace('l', 'L', 1)
n|replace(7, 8)
'a\\nb\\n\\nc'|indent
'a\\nb\\n\\nc'|indent(2)
'a\\nb\\n\\nc'|indent(2, true)
'a\\nb\\n\\nc'|indent(2, first=true, blank=true)
'a\\nb'|indent('> ')
'a\\nb\\n'|indent
''|indent
''|indent(2, true)
n|indent
'<b>'|safe
('<b>'|safe) + '<i>'
'<i>' + ('<b>'|safe)
('<b>'|safe) ~ '<i>'
('<b>'|safe|string) + '&'
(' <b> '|safe|trim) + '"'
('<b>'|safe|upper) + "'"
'<&>"\\''|escape
('<b>'|escape) + '<'
'<'|e|e
d|tojson
messages|tojson
messages[2]|tojson(indent=2)
messages[2].tool_calls|tojson(indent=4)
[]|tojson(indent=2)
{}|tojson(indent=2)
[[], {}]|tojson(indent=1)
l|tojson(indent=0)
l|tojson(indent='--')
u|tojson
u|tojson(ensure_ascii=true)
u|tojson(true)
"\\x00\\x1f\\x7f\\b\\f"|tojson
"\\x7f"|tojson(ensure_ascii=True)
"</script>&'"|tojson
d|tojson(sort_keys=true)
d|tojson(separators=(',', ':'))
{1: 2, none: 3, true: 4, 1.5: 5}|tojson
(1, 2)|tojson
nope|tojson
range(2)|tojson
1e400|tojson
1.0|tojson
1e-7|tojson
none|tojson
true|tojson
'a'|tojson|tojson
messages|map(attribute='role')|tojson
s is defined
nope is defined
nope is undefined
nope is not defined
not nope is defined
nothing is none
nothing is not none
nope is none
s is string
n is string
nope is string
n is number
t is number
f is number
n is integer
t is integer
f is float
t is boolean
n is boolean
true is true
1 is true
false is false
0 is false
d is mapping
l is mapping
l is sequence
s is sequence
d is sequence
n is sequence
nope is sequence
d.items() is sequence
d.items() is iterable
l is iterable
s is iterable
n is iterable
nothing is iterable
nope is iterable
3 is odd
4 is even
-3 is odd
9 is divisibleby 3
9 is divisibleby(4)
1 is eq 1
1 is equalto 2
1 is ne 2
2 is gt 1
2 is lessthan 1
2 is ge(2)
'a' is in ['a']
'a' is in 'abc'
'a' is not in 'abc'
s is upper
'ABC' is upper
'abc1' is lower
'1' is lower
range is callable
n is callable
'upper' is filter
'nope' is filter
'odd' is test
none is sameas none
1 is sameas true
s is nope
s|nope
s is defined and n is odd
n is odd == true
n is defined if t else 0
[1 is odd, 2 is even]
(s is string)|string
s|upper|lower is string
-1|abs
'a' ~ 'b'|upper
1 + 2|string|int
messages[0]|length
loop
loop is defined
strftime_now('%Y') is string
raise_exception('no: ' ~ n)
[1, 2][0] + {'a': 1}['a']
'%s' is string
(1, 2)[1]
((1, 2), 3)[0][1]
{'a': {'b': {'c': 1}}}.a.b.c
{'a': 1}['a'] if true
'abc'[1:2] ~ 'abc'[5:9] ~ '|'
'abc'[-9:2]
'abc'[1:none]
'abc'[true]
l[true]
[1, 2, 3][-2:]
[1, 2, 3][::0]
messages[::-1]|map(attribute='role')|join(' ')
9223372036854775807 + 0
'x' in ['x', 1]
1 in {1: 2}
[1] in {1: 2}
[] and 1
{} or 2
0.0 or 3
1 and 0
'a' == 'a' != 'b'
(1 + 2) * 3
1 - -1
[1, 2, ]
{'a': 1, }
dict(a=1, **{'b': 2})
range(*[1, 4])|list
'x'.nope.nope
'x'['upper']()
d['C']['k']
d.copy().b
d.values()|list|length
d.items()|list|first|first
loop.index
"{% raw %}"
'}}'
'%}'
"{{ 1 }}"
1.5 is integer
1 == 1 and 2 == 2 or nope.x
t and nope.x
12 == 12 is sameas true
""".strip("\n").split("\n")

TEMPLATES = [
    "",
    "plain\n",
    "plain\n\n",
    "a\r\nb\rc",
    "{{ s }}\n",
    "{{ s }}\n\nx",
    "{% if t %}\nyes\n{% endif %}\nend",
    "  {% if t %}\n  yes\n  {% endif %}\nend",
    "a  {% if t %}b{% endif %}  c",
    "a  {%- if t -%}  b  {%- endif -%}  c",
    "a\n\n  {%- if t %}\n b\n {%+ endif %}\n c",
    "a\n  {%+ if t +%}\nb{% endif %}\nc",
    "a {{- s -}} b",
    "a\n {{ s }}\n b",
    " \t{{ s }}",
    "a {# comment #} b",
    "a\n  {# comment #}\nb",
    "a\n  {#- comment -#}\n b",
    "a\n{# multi\nline #}\nb",
    "{# {{ nope.x }} {% if %} #}x",
    "{% raw %}{{ s }} {% if %}{% endraw %}",
    "a\n {% raw %}\n{{ x }}\n {% endraw %}\n b",
    "a {%- raw -%}  x  {%- endraw -%}  b",
    "{{ '{{' }} {{ '%}' }}",
    "{ { } } {x} }} %} #}",
    "{% set x = 1 %}{{ x }}",
    "{% set x, y = 1, 2 %}{{ x }}{{ y }}",
    "{% set (x, y) = [1, 2] %}{{ x }}{{ y }}",
    "{% set x, y = [1] %}",
    "{% set x = 1, 2 %}{{ x }}",
    "{% set x %}a{{ n }}b{% endset %}{{ x }}{{ x|length }}",
    "{% set x | upper %}abc{% endset %}{{ x }}",
    "{% set x | replace('a', 'b') | upper %}abc{% endset %}{{ x }}",
    "{% set ns = namespace(n=1) %}{% for i in l %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
    "{% set ns = namespace() %}{% set ns.x %}block{% endset %}{{ ns.x }}",
    "{% set ns = namespace(a=1) %}{% set ns.a, b = 5, 6 %}{{ ns.a }}{{ b }}",
    "{% set x = {} %}{% set x.y = 1 %}",
    "{% set nope.y = 1 %}",
    "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "{% set s = 'new' %}{{ s }}",
    "{% set x = 1 %}{% for i in l %}{% set x = i %}{{ x }}{% endfor %}{{ x }}",
    "{% for i in l %}{% set y = i %}{% endfor %}{{ y is defined }}",
    "{% set x = 1 %}{% for i in l %}{{ x }}{% set x = x + i %}{{ x }} {% endfor %}",
    "{% if t %}{% set x = 1 %}{% endif %}{{ x }}",
    "{% set x = 1 %}{% if t %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% for i in l %}{{ i }},{% endfor %}",
    "{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% for i in l %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}",
    "{% for i in l %}{{ loop.previtem is defined }}{{ loop.nextitem is undefined }} {% endfor %}",
    "{% for i in l %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for i in l %}{{ loop.nope }}{% endfor %}",
    "{% for i in l %}{% for j in 'ab' %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}",
    "{% for i in l %}{% set outer = loop %}{% for j in 'ab' %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}",
    "{% for i in l if i > 1 %}{{ loop.index }}{{ loop.length }}{{ i }} {% endfor %}",
    "{% for m in messages if m.role != 'system' %}{{ m.role }}{{ loop.last }} {% else %}none{% endfor %}",
    "{% for i in [] %}x{% else %}empty{% endfor %}",
    "{% for i in nope %}x{% else %}empty{% endfor %}",
    "{% for i in l if i > 9 %}x{% else %}empty{% endfor %}",
    "{% for i in l %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in l %}{% break %}{% else %}else{% endfor %}",
    "{% for i in l %}{% continue %}{% else %}else{% endfor %}",
    "{% for i in l %}{% if loop.last %}{% break %}{% endif %}{% else %}else{% endfor %}",
    "{% for i in l %}{% for j in l %}{% if j == 1 %}{% break %}{% endif %}{{ j }}{% endfor %}{{ i }} {% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d|items %}{{ k }}={{ loop.index }};{% endfor %}",
    "{% for k in d %}{{ k }} {% endfor %}",
    "{% for c in u %}[{{ c }}]{% endfor %}",
    "{% for a, b in [[1, 2], [3, 4]] %}{{ a }}{{ b }} {% endfor %}",
    "{% for a, (b, c) in [[1, [2, 3]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in l %}{% endfor %}",
    "{% for i in n %}{% endfor %}",
    "{% for i in nothing %}{% endfor %}",
    "{% for i in range(3) %}{{ i }}{% endfor %}{{ i is defined }}",
    "{% for i in l %}{% endfor %}{{ loop is defined }}",
    "{% for x in l %}{{ x }}{% endfor %}{% set x = 5 %}{{ x }}",
    "{% for i in l|map('string') %}{{ i }}{{ loop.length }}{{ loop.last }} {% endfor %}",
    "{% set g = l|map('string') %}{{ g|list }}{{ g|list }}",
    "{% set g = l|select %}{{ g|first }}{{ g|first }}{{ g|join('-') }}",
    "{% for i in 1, 2 %}{{ i }}{% endfor %}",
    "{% if z %}a{% elif e %}b{% elif t %}c{% else %}d{% endif %}",
    "{% if z %}a{% elif e %}b{% else %}d{% endif %}",
    "{% if z %}a{% elif e %}b{% endif %}",
    "{% if nope %}a{% endif %}",
    "{% if nope.x %}a{% endif %}",
    "{% if n is odd and l %}a{% endif %}",
    "{% if not z: %}colon{% endif %}",
    "{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}|{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c='y') }}{{ m(b=5, a=4) }}{{ m() }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}",
    "{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}",
    "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}",
    "{% macro m() %}{{ s }}{% endmacro %}{{ m()|upper }}{{ m() ~ 'x' }}{{ m() == s }}",
    "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(4) }}",
    "{% macro m() %}{% set x = 2 %}{{ x }}{% endmacro %}{% set x = 1 %}{{ m() }}{{ x }}",
    "{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}",
    "{% macro m() %}{{ loop is defined }}{% endmacro %}{% for i in l %}{{ m() }}{% endfor %}",
    "{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% macro m(x) %}\n  a{{ x }}\n{% endmacro %}\n{{ m(1) }}",
    "{% macro m(x) -%}\n  a{{ x }}\n{%- endmacro %}[{{ m(1) }}]",
    "{% macro a(x) %}<{{ x }}>{% endmacro %}{% macro b(x) %}{{ a(x) }}{{ a(x + 1) }}{% endmacro %}{{ b(1) }}",
    "{% macro m(x) %}{{ x }}{% endmacro %}{{ m('<b>') + '<' }}",
    "{% macro m(l) %}{% for i in l %}{{ i }}{% endfor %}{% endmacro %}{{ m([1, 2]) }}{{ m(l=(3, 4)) }}",
    "{% set m = 5 %}{% macro m() %}x{% endmacro %}{{ m() }}",
    "{% macro m(a, a2=1) %}{{ a }}{% endmacro %}{{ m(**{'a': 7}) }}{{ m(*[8]) }}",
    "{% with x = 1, y = 2 %}{{ x + y }}{% endwith %}{{ x is defined }}",
    "{% with %}{% set x = 1 %}{{ x }}{% endwith %}{{ x is defined }}",
    "{% set x = 1 %}{% with x = x + 1 %}{{ x }}{% endwith %}{{ x }}",
    "{% filter upper %}abc{{ s }}{% endfilter %}",
    "{% filter trim|replace('a', 'b') %}  abc {% endfilter %}",
    "{% filter trim %}{% set x = 1 %} x {% endfilter %}{{ x is defined }}",
    "{% generation %}a{{ s }}{% endgeneration %}b",
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% set x = 1 %}{% endgeneration %}\n{% endif %}{% endfor %}{{ x is defined }}",
    "{%- set ns = namespace(found=false) -%}\n{%- for m in messages -%}\n{%- if m.role == 'user' -%}{%- set ns.found = true -%}{%- endif -%}\n{%- endfor -%}\n{{ ns.found }}",
    "{{ messages[0]['role'] }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% else %}{% set loop_messages = messages %}{% endif %}{% for message in loop_messages %}{{ message.role }}{% endfor %}",
    "{% set add = (add_generation_prompt is defined and add_generation_prompt) %}{{ add }}",
    "{% set x = [1, 2] %}{% set x = x + [3] %}{{ x }}",
    "{% set ns = namespace(l=[]) %}{% for i in l %}{% set ns.l = ns.l + [i * 2] %}{% endfor %}{{ ns.l }}",
    "{% set ns = namespace(s='') %}{% for m in messages %}{% set ns.s = ns.s ~ m.role ~ ';' %}{% endfor %}{{ ns.s }}",
    "{% set ns = namespace(s='') %}{% for m in messages %}{% set ns.s = ns.s + m.role + ';' %}{{ ns.s }}\n{% endfor %}{{ ns.s }}",
    "{% set a = 'x' %}{% set b = a + 'y' %}{% set c = a + 'z' %}{{ a }}{{ b }}{{ c }}{{ b + '1' }}{{ b + '2' }}",
    "{{ {'a': 1}|length }}{{ '}}' }}{{ \"}}\" }}",
    "{{ s\n}}",
    "{{\n  s\n}}\n{{ n }}",
    "{%if t%}a{%endif%}",
    "{%-if t-%} a {%-endif-%}",
    # errors and where they are
    "line1\n{{ }}",
    "a\n\n{% nope %}",
    "{% if t %}",
    "{% if t %}\n{% else %}\n",
    "{% for i in l %}\n{% endif %}",
    "a\n{% endif %}",
    "{% if %}a{% endif %}",
    "{% for i l %}{% endfor %}",
    "{{ s",
    "\n{% if t",
    "\n\n{# open",
    "{% raw %} open",
    "{{ 'open }}",
    "{{ (1 }}",
    "{{ 1) }}",
    "{{ [1, }}",
    "{{ {1} }}",
    "{{ a b }}",
    "{{ 1 + }}",
    "{{ | upper }}",
    "{{ s. }}",
    "{{ s | }}",
    "{{ s is }}",
    "{{ ? }}",
    "{{ s }} %}",
    "{% set 1 = 2 %}",
    "{% set true = 2 %}",
    "{% set x == 2 %}",
    "{% macro m(a=1, b) %}{% endmacro %}",
    "{% break %}",
    "{% for loop in l %}{% endfor %}",
    "{% set x %}never closed",
    "{{ f(a=1, 2) }}",
    "{{ f(**d, 1) }}",
    "\n\n\n{{ nope.x }}",
    "{% if t %}{{ s|nope }}{% endif %}",
    "{% if z %}{{ s|nope }}{% endif %}",
    "{{ '\\x4' }}",
    "{{ 012 }}",
    "{% elif t %}",
]


def render(template, arguments):
    try:
        compiled = _compile_jinja_template(template)
    except jinja2.TemplateSyntaxError as error:
        return {"error": error.lineno}
    except SyntaxError:
        return {"error": 0}
    try:
        text = compiled.render(**arguments)
        return {"text": text}
    except Exception:
        return {"error": 0}


def main():
    cases = [{"template": "{{ " + text + " }}"} for text in EXPRESSIONS]
    cases += [{"template": text} for text in TEMPLATES]
    for case in cases:
        case.update(render(case["template"], ARGUMENTS))
    out = {"versions": {"transformers": transformers.__version__, "jinja2": jinja2.__version__},
           "arguments": ARGUMENTS, "cases": cases}
    lines = ",\n".join("  " + json.dumps(case, ensure_ascii=False) for case in cases)
    text = json.dumps({**out, "cases": []}, ensure_ascii=False, indent=1)
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(text.replace('"cases": []', '"cases": [\n' + lines + "\n ]") + "\n")
    print(len(cases), "cases,", sum("error" in case for case in cases), "errors")


main()
