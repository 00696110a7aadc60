"""The figures of HTML pages, as plain data worked out from frames; each kind is a module, named as its macro is.

A figure has no more marks than a screen can show: steps are taken together, layers are taken together, and of a long
sequence only the longest kernels are kept, the others counted. Times leave here as ms or as whole ns from the start
of what is drawn, so that no number is too large for JavaScript.

Those of a comparison (spans, dots, deltas) are printed as HTML and SVG, so that they are there without a script, print,
and follow the colours of the page. Less is blue and more is orange wherever a change is drawn; a sign says the same.
"""
