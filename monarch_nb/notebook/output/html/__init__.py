"""HTML of what ranks print and display.

pieces  what that is made of: both at once, and the labels of ranks
ansi    colours in text become HTML
top     where ranks spend their time, as bars
mime    displays become HTML, or text
"""
