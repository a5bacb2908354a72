room_tests(ckpt INSIDE gguf_round LINKS parallel) # checkpoints of any layout
