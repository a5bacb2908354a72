room_tests(ckpt LINKS parallel) # checkpoints of any layout
