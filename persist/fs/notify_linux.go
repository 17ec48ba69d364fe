package fs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/hints"
)

// notifier learns from the kernel which files are renamed into the folders below records/.
//
// The races, and what decides them:
//
//	a record is put into a new folder before the folder is watched
//	      The zero hint follows once the folder is watched. A folder is watched before it is searched
//	      for folders below it, so the kernel reports a folder that is made meanwhile.
//	a folder is removed and made again
//	      The kernel ends the watch with IN_IGNORED and reports the new folder. It does not use the
//	      number of the old watch again.
//	the kernel's queue overflows
//	      All folders are watched again, because a new one may have been missed. Then the zero hint
//	      follows.
//	a folder cannot be watched, or records/ itself is removed or moved
//	      run returns an error, and the store polls from then on.
type notifier struct {
	file   *os.File // owns fd; only run closes it, so fd stays valid while it is used
	fd     int
	root   string
	rootID int32
	paths  map[int32]string // of the watched folders, by the number of the watch
}

const (
	renamed     = syscall.IN_MOVED_TO // how the file of a record appears
	notedEvents = renamed | syscall.IN_CREATE | syscall.IN_MOVE_SELF | syscall.IN_ONLYDIR
	eventSize   = syscall.SizeofInotifyEvent
)

// newNotifier watches root and every folder below it. It fails if the kernel does not grant that
// many watches.
func newNotifier(root string) (*notifier, error) {
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	n := &notifier{file: os.NewFile(uintptr(fd), "inotify"), fd: fd, root: root}
	if err := n.watchAll(); err != nil {
		return nil, errors.Join(err, n.file.Close())
	}
	return n, nil
}

// watchAll watches root and all folders below it. Folders that are watched already stay so.
func (n *notifier) watchAll() error {
	n.paths = make(map[int32]string)
	id, err := n.watch(n.root)
	if err == nil && id < 0 {
		err = iofs.ErrNotExist
	}
	n.rootID = id
	return err
}

// watch watches a folder and all folders below it. It returns the number of the watch, or -1 if the
// folder does not exist any more.
func (n *notifier) watch(path string) (int32, error) {
	id, err := syscall.InotifyAddWatch(n.fd, path, notedEvents)
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) {
		return -1, nil
	}
	if err != nil {
		return -1, err
	}
	n.paths[int32(id)] = path
	entries, err := os.ReadDir(path)
	if err != nil && !errors.Is(err, iofs.ErrNotExist) {
		return -1, err
	}
	for _, entry := range entries {
		below := filepath.Join(path, entry.Name())
		if entry.IsDir() && holdsRecords(n.root, below) {
			if _, err := n.watch(below); err != nil {
				return -1, err
			}
		}
	}
	return int32(id), nil
}

// run sends a hint for each record that is renamed into its place. It returns nil when ctx ends,
// and an error when it cannot continue.
func (n *notifier) run(ctx context.Context, to *hints.Hub) error {
	defer n.file.Close()
	defer context.AfterFunc(ctx, func() { _ = n.file.SetReadDeadline(time.Unix(1, 0)) })()
	buffer := make([]byte, 64<<10)
	for {
		count, err := n.file.Read(buffer)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		for events := buffer[:count]; len(events) > 0; {
			var e event
			e, events = nextEvent(events)
			if err := n.handle(e, to); err != nil {
				return err
			}
		}
	}
}

// event is a message of the kernel.
type event struct {
	id   int32 // the number of the watch
	mask uint32
	name string
}

// nextEvent returns the first event of a buffer, and the rest. The kernel writes whole events only.
func nextEvent(buffer []byte) (event, []byte) {
	e := event{
		id:   int32(binary.NativeEndian.Uint32(buffer)),
		mask: binary.NativeEndian.Uint32(buffer[4:]),
	}
	end := eventSize + int(binary.NativeEndian.Uint32(buffer[12:]))
	name, _, _ := bytes.Cut(buffer[eventSize:end], []byte{0}) // the name is padded with zeros
	e.name = string(name)
	return e, buffer[end:]
}

// handle watches the new folders and sends the hints that follow from an event.
func (n *notifier) handle(e event, to *hints.Hub) error {
	folder, known := n.paths[e.id]
	path := filepath.Join(folder, e.name)
	switch {
	case e.mask&syscall.IN_Q_OVERFLOW != 0:
		if err := n.watchAll(); err != nil {
			return err
		}
		to.Send(persist.Hint{})
	case !known:
	case e.mask&(syscall.IN_IGNORED|syscall.IN_UNMOUNT) != 0 || e.id == n.rootID && e.mask&syscall.IN_MOVE_SELF != 0:
		if e.id == n.rootID {
			return fmt.Errorf("fs: %s was removed or moved", n.root)
		}
		delete(n.paths, e.id)
	case e.mask&syscall.IN_ISDIR != 0:
		if e.name != "" && holdsRecords(n.root, path) { // without a name the event is about the folder itself
			if _, err := n.watch(path); err != nil {
				return err
			}
			to.Send(persist.Hint{})
		}
	case e.mask&renamed != 0:
		if key, ok := keyOf(n.root, path); ok {
			to.Send(persist.Hint{Key: key})
		}
	}
	return nil
}
