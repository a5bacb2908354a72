room_tests(pretrained)
