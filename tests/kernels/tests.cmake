# missing has a table with a hole filled, and how threads wait is the CPU backend's own.
room_tests(kernels INSIDE missing waits LINKS op_cases)

# Products again as on a processor without AVX-512, where oneDNN has no bf16.
run_again(kernels_gemm_test_avx2 kernels_gemm_test)
set_tests_properties(kernels_gemm_test_avx2 PROPERTIES ENVIRONMENT "ONEDNN_MAX_CPU_ISA=AVX2")
# How threads wait is what the program chooses, not what the environment of the tests says.
set_tests_properties(kernels_waits_test PROPERTIES ENVIRONMENT_MODIFICATION "OMP_WAIT_POLICY=unset:;GOMP_SPINCOUNT=unset:")
