<%doc>
float: single precision, fused multiply-adds that begin with the bias (table row 0, where there is one).
</%doc>
<%def name="functions(arith, width)"></%def>
<%def name="start(arith, width, rows, row)">${row(0) if rows else f"({vec_type('float', width)})(0)"}</%def>
<%def name="mac(arith, width, acc, x, w)">${acc} = fma(${x}, ${w}, ${acc});</%def>
<%def name="channel(arith, width, acc)"></%def>
<%def name="finish(arith, width, acc, result, row)"></%def>
