# Arguments arrive as they were typed.
# procs: 2
# args: --lr 0.1 --name 'two words' 'ckpt-{epoch}' '$HOME' '~' '*' '' 'it'\''s' '%d'
# ways: script live
import sys

print(sys.argv[1:])
