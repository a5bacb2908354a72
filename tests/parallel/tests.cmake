room_tests(parallel LINKS comm_cases) # sync sums over the collectives' test channel as well
