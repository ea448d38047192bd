<%doc>
Reads ahead into the cache, where the device's compiler takes `__builtin_prefetch` (Target.features).

fetch(pointer)   Statement that asks for the cache line at `pointer`, which may lie outside of any buffer.
</%doc>
<%def name="fetch(pointer)">__builtin_prefetch((const void *)(size_t)(${pointer}));</%def>
