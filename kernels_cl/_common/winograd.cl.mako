<%doc>
Products with the constant matrices of Winograd's convolution, written out as sums.

by_rows(matrix, into, source)
    into(i) = sum of matrix[i][k] * source(k). Two rows that differ in some signs only share sums.
tile(matrix, source, put)
    Both transforms of a tile: source(i, j) is its input in row i and column j, put(i, j, value) the statement that
    keeps a place. Rows of places that share sums are made together, from inputs read anew, so that registers hold all.
by_columns(matrix, into, source)
    The same; two columns that differ in some signs only are added and subtracted first.
into and source return the text of a place; numbers are integers, or floats that are exact in single precision.
</%doc>
<%!
def total(terms):
    """Text of a sum of coefficient * name, begun with a term that needs no product."""
    terms = sorted(((c, n) for c, n in terms if c), key=lambda t: (t[0] != 1, t[0] != -1))
    text = ""
    for c, name in terms:
        number = f"{abs(c)!r}f" if isinstance(c, float) else f"(V)({abs(c)})"
        size = name if abs(c) == 1 else f"{number} * {name}"
        sign = ("-" if c < 0 else "") if not text else (" - " if c < 0 else " + ")
        text += sign + size
    return text

def pairs(rows):
    """Pairs (i, j) of rows with the same magnitudes, then single ones as (i, None)."""
    left, found = list(range(len(rows))), []
    while left:
        i = left.pop(0)
        sizes = [abs(c) for c in rows[i]]
        j = next((j for j in left if [abs(c) for c in rows[j]] == sizes), None)
        if j is not None:
            left.remove(j)
        found.append((i, j))
    return found

MOST_HELD = 24  # vectors between both transforms of a tile, of 32 registers

def alike(matrix):
    """Rows that are made together, with the columns that any of them meets."""
    found = {}
    for both in pairs(matrix):
        rows = [i for i in both if i is not None]
        met = tuple(k for k in range(len(matrix)) if any(matrix[i][k] for i in rows))
        held = found.setdefault(met, [[]])
        if (len(held[-1]) + len(rows)) * len(matrix) > MOST_HELD:
            held.append([])
        held[-1] += rows
    return [(rows, met) for met, sets in found.items() for rows in sets if rows]
%>
<%def name="by_rows(matrix, into, source)">\
% for i, j in pairs(matrix):
%  if j is None:
    ${into(i)} = ${total([(c, source(k)) for k, c in enumerate(matrix[i])])};
%  else:
    {
        const V same = ${total([(c, source(k)) for k, c in enumerate(matrix[i]) if c == matrix[j][k]])};
        const V other = ${total([(c, source(k)) for k, c in enumerate(matrix[i]) if c != matrix[j][k]])};
        ${into(i)} = same + other;
        ${into(j)} = same - other;
    }
%  endif
% endfor
</%def>
<%def name="tile(matrix, source, put)">\
% for together, met in alike(matrix):
<% rows = [matrix[i] for i in together] %>\
    {
        V ${", ".join(f"h{i}_{j}" for i in range(len(rows)) for j in range(len(matrix)))};
%  for j in range(len(matrix)):
        {
%   for i in met:
            const V d${i} = ${source(i, j)};
%   endfor
            ${by_rows(rows, lambda i: f"h{i}_{j}", lambda k: f"d{k}")}
        }
%  endfor
%  for at, i in enumerate(together):
        {
            V ${", ".join(f"r{j}" for j in range(len(matrix)))};
            ${by_rows(matrix, lambda j: f"r{j}", lambda k: f"h{at}_{k}")}
%   for j in range(len(matrix)):
            ${put(i, j, f"r{j}")}
%   endfor
        }
%  endfor
    }
% endfor
</%def>
<%def name="by_columns(matrix, into, source)">\
<% joined = pairs(list(zip(*matrix))) %>\
    {
% for i, j in joined:
%  if j is not None:
        const V sum${i} = ${source(i)} + ${source(j)}, less${i} = ${source(i)} - ${source(j)};
%  endif
% endfor
% for at, row in enumerate(matrix):
        ${into(at)} = ${total([(row[i], source(i) if j is None else f"sum{i}" if row[i] == row[j] else f"less{i}") for i, j in joined])};
% endfor
    }
</%def>
