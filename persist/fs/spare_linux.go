package fs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// exchange lets the files at two paths change places atomically. It fails if the file system does
// not support that.
func exchange(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}

// overwrite makes the file at path tentative and replaces its content durably. It fails without a
// change if the file is open elsewhere, has a second name, or has another owner.
func overwrite(path string, data []byte) error {
	file, err := openFile(path, os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return errors.Join(overwriteOpen(file, data), file.Close())
}

func overwriteOpen(file *os.File, data []byte) error {
	fd := file.Fd()
	if _, err := unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		return err
	}
	// Close does not end the lease while a process that is being started has a copy of the open file.
	defer unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_UNLCK)
	var stat unix.Stat_t
	if err := unix.Fstat(int(fd), &stat); err != nil {
		return err
	}
	if stat.Nlink != 1 || int(stat.Uid) != os.Geteuid() {
		return errors.New("the file has a second name or another owner")
	}
	if err := file.Chmod(tentative); err != nil {
		return err
	}
	if _, err := file.Write(data); err != nil {
		return err
	}
	if stat.Size > int64(len(data)) {
		if err := file.Truncate(int64(len(data))); err != nil {
			return err
		}
	}
	return unix.Fdatasync(int(fd))
}
