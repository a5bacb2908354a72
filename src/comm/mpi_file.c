/* Files over MPI-IO. Each write is one collective call, so that the library can gather the writes to one server. */
#include "comm/comm_file.h"
#include "mpi-internal.h"

struct comm_file {
    const struct mpi_comm *comm;
    MPI_File file;
    char path[PATH_MAX];
};

/* Returns the status of a return code, with the file's name and MPI's text, which rarely has the system's reason. */
static int file_status(const struct comm_file *file, int code, const char *what) {
    int class = MPI_SUCCESS;
    if (code == MPI_SUCCESS)
        return STATUS_OK;
    MPI_Error_class(code, &class);
    if (class == MPI_ERR_NO_SPACE || class == MPI_ERR_QUOTA)
        return status_fail(STATUS_IO, "cannot %s %s: no space left on device", what, file->path);
    int status = mpi_status(file->comm, code, what);
    return status_wrap(status, "%s", file->path);
}

bool comm_has_files(const struct comm *comm) {
    return comm_is_mpi(comm);
}

int comm_file_open(struct comm *base, const char *path, struct comm_file **out) {
    const struct mpi_comm *comm = (const struct mpi_comm *)base;
    struct comm_file *file = *out = calloc(1, sizeof *file);
    TRY(status_allocated(file));
    file->comm = comm;
    snprintf(file->path, sizeof file->path, "%s", path);
    mpi_enter(file->comm->process);
    int code = MPI_File_open(comm->calls, path, MPI_MODE_WRONLY, MPI_INFO_NULL, &file->file);
    int status = file_status(file, code, "open");
    mpi_leave(file->comm->process);
    if (status) {
        free(file);
        *out = NULL;
    }
    return status;
}

int comm_file_write(struct comm_file *file, int64_t at, const void *bytes, int64_t count) {
    MPI_Status written;
    int length = 0;
    if (count > INT_MAX)
        return status_fail(STATUS_UNSUPPORTED, "%s: %lld bytes in one write", file->path, (long long)count);
    mpi_enter(file->comm->process);
    int code = MPI_File_write_at_all(file->file, at, bytes, (int)count, MPI_BYTE, &written);
    int status = file_status(file, code, "write");
    if (!status && MPI_Get_count(&written, MPI_BYTE, &length) == MPI_SUCCESS && length != count)
        status = status_fail(STATUS_IO, "cannot write %s: %d of %lld bytes were written (is the disk full?)",
                             file->path, length, (long long)count);
    mpi_leave(file->comm->process);
    return status;
}

int comm_file_close(struct comm_file *file) {
    mpi_enter(file->comm->process);
    int status = file_status(file, MPI_File_sync(file->file), "sync");
    int closed = file_status(file, MPI_File_close(&file->file), "close");
    mpi_leave(file->comm->process);
    free(file);
    return status ? status : closed;
}
