/* A library that has its version and nothing else. */
unsigned ncclGetVersion(int *version);
__attribute__((visibility("default"))) unsigned ncclGetVersion(int *version) {
    *version = 22809;
    return 0;
}
