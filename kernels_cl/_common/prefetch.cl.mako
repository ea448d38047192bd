<%doc>
Reads ahead into the cache, where the device's compiler takes `__builtin_prefetch` (Target.features).

fetch(pointer)      Statement that asks for the cache line at `pointer`, which may lie outside of any buffer.
fetch_far(pointer)  The same, into a core's second cache only.
fetch_to_write(pointer)  The same, of a line that is to be written.
</%doc>
<%def name="fetch(pointer)">__builtin_prefetch((const void *)(size_t)(${pointer}));</%def>
<%def name="fetch_far(pointer)">__builtin_prefetch((const void *)(size_t)(${pointer}), 0, 2);</%def>
<%def name="fetch_to_write(pointer)">__builtin_prefetch((const void *)(size_t)(${pointer}), 1, 2);</%def>
