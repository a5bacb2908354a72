room_tests(jobs INSIDE verify)
