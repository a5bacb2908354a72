room_tests(openai)
