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
	"github.com/pawl-go/pawl/persist/internal/hints"
)

// notifier is told by the kernel what is renamed into the folders below records/. The races:
//
//   - A folder is made, and something put into it, before it is watched: the zero hint is sent once it
//     is. It is watched before it is searched for folders, so that of one in it that is made meanwhile
//     the kernel tells.
//   - A folder is removed and made again: the kernel ends the watch with IN_IGNORED, and tells of the
//     new one. The number of the old watch is not used again.
//   - The queue of the kernel overflows: everything is watched as at the beginning, since a folder may
//     have been missed, and then the zero hint is sent.
//   - It cannot be watched (there is a limit to that), or records/ itself is removed or moved away:
//     run returns an error, and the watcher polls from then on.
type notifier struct {
	file   *os.File // has fd in its care; closed by run alone, so that fd is nobody else's while it is used
	fd     int
	root   string
	rootID int32
	places map[int32]followed // by the number of the watch
}

// followed is a folder under watch.
type followed struct {
	path  string
	place place
}

const (
	renamed     = syscall.IN_MOVED_TO // this is how the file of a record appears
	notedEvents = renamed | syscall.IN_CREATE | syscall.IN_MOVE_SELF | syscall.IN_ONLYDIR
	eventSize   = syscall.SizeofInotifyEvent
)

// newNotifier watches what is in root, and every folder below it. It fails if there are too many.
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

// watchAll watches root and all folders below it; those that are watched already stay so.
func (n *notifier) watchAll() error {
	n.places = make(map[int32]followed)
	id, err := n.watch(followed{path: n.root})
	if err == nil && id < 0 {
		err = iofs.ErrNotExist
	}
	n.rootID = id
	return err
}

// watch watches a folder and all folders below it, and returns the number of the watch, or -1 if it
// is gone again.
func (n *notifier) watch(folder followed) (int32, error) {
	id, err := syscall.InotifyAddWatch(n.fd, folder.path, notedEvents)
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) {
		return -1, nil
	}
	if err != nil {
		return -1, err
	}
	n.places[int32(id)] = folder
	file, err := os.Open(folder.path)
	if errors.Is(err, iofs.ErrNotExist) {
		return int32(id), nil
	}
	if err != nil {
		return -1, err
	}
	entries, err := file.ReadDir(-1)
	if err := errors.Join(err, file.Close()); err != nil && !errors.Is(err, iofs.ErrNotExist) {
		return -1, err
	}
	for _, entry := range entries {
		if below, ok := folder.below(entry.Name()); ok && entry.IsDir() {
			if _, err := n.watch(below); err != nil {
				return -1, err
			}
		}
	}
	return int32(id), nil
}

// below returns the folder of this name, and false if no record is ever in it.
func (w followed) below(name string) (followed, bool) {
	place, ok := w.place.below(name)
	return followed{path: filepath.Join(w.path, name), place: place}, ok
}

// run sends a hint for each record that is renamed into its place. It returns nil when ctx ends, and
// an error when it cannot go on.
func (n *notifier) run(ctx context.Context, to *hints.Subscription) error {
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

// event is what the kernel tells.
type event struct {
	id   int32 // of the watch
	mask uint32
	name string
}

// nextEvent cuts the first event off a buffer, in which the kernel puts only whole ones.
func nextEvent(buffer []byte) (event, []byte) {
	e := event{
		id:   int32(binary.NativeEndian.Uint32(buffer)),
		mask: binary.NativeEndian.Uint32(buffer[4:]),
	}
	end := eventSize + int(binary.NativeEndian.Uint32(buffer[12:]))
	name, _, _ := bytes.Cut(buffer[eventSize:end], []byte{0}) // it is padded
	e.name = string(name)
	return e, buffer[end:]
}

func (n *notifier) handle(e event, to *hints.Subscription) error {
	folder, known := n.places[e.id]
	switch {
	case e.mask&syscall.IN_Q_OVERFLOW != 0:
		if err := n.watchAll(); err != nil {
			return err
		}
		to.Send(persist.Hint{})
	case !known:
	case e.mask&(syscall.IN_IGNORED|syscall.IN_UNMOUNT) != 0 || e.id == n.rootID && e.mask&syscall.IN_MOVE_SELF != 0:
		if e.id == n.rootID {
			return fmt.Errorf("fs: %s is gone", n.root)
		}
		delete(n.places, e.id)
	case e.mask&syscall.IN_ISDIR != 0:
		if below, ok := folder.below(e.name); ok && e.name != "" { // without a name it is about the folder itself
			if _, err := n.watch(below); err != nil {
				return err
			}
			to.Send(persist.Hint{})
		}
	case e.mask&renamed != 0:
		if key, ok := folder.place.key(e.name); ok {
			to.Send(persist.Hint{Key: key})
		}
	}
	return nil
}
