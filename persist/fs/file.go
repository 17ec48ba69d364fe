package fs

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"path/filepath"
	"strings"
)

// format is the number of the format that this release writes.
const format = 1

const (
	// deepest is the nesting up to which a file is indented. Beyond it indentation would grow out
	// of proportion to what is indented, and the file is left on one line.
	deepest = 16
	// deepestJSON is the nesting up to which encoding/json reads what it has written.
	deepestJSON = 10000
)

// envelope is what every file but pawl.json is.
type envelope struct {
	Format   int             `json:"format"`
	Checksum string          `json:"checksum"`
	Content  json.RawMessage `json:"content"`
}

// seal returns the bytes of the file that holds content, and their checksum.
func seal(content any) (data []byte, checksum string, err error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // documents keep their tokens
	if err := encoder.Encode(content); err != nil {
		return nil, "", fmt.Errorf("fs: %w", err)
	}
	compact := bytes.TrimSpace(text.Bytes())
	checksum = sum(compact)
	depth := 1 + nesting(compact)
	switch {
	case depth > deepestJSON:
		return nil, "", fmt.Errorf("fs: the document is nested %d levels deep, which is too deep for its file", depth)
	case depth > deepest:
		return fmt.Appendf(nil, `{"format":%d,"checksum":%q,"content":%s}`+"\n", format, checksum, compact), checksum, nil
	}
	data = make([]byte, 0, 2*len(compact)+256)
	data = fmt.Appendf(data, "{\n\t\"format\": %d,\n\t\"checksum\": \"%s\",\n\t\"content\": ", format, checksum)
	data = appendIndented(data, compact, 1)
	return append(data, "\n}\n"...), checksum, nil
}

// appendIndented is json.Indent, with tabs, of a JSON text that is known to be one, without white space between its tokens.
func appendIndented(data, compact []byte, depth int) []byte {
	const tabs = "\n\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t"
	quoted, begun := false, 0 // begun is where what was not appended yet begins
	for i := 0; i < len(compact); i++ {
		c := compact[i]
		switch {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if compact[i+1] == c+2 { // its end
				i++
				continue
			}
			depth++
			data = append(append(data, compact[begun:i+1]...), tabs[:depth+1]...)
			begun = i + 1
		case c == '}' || c == ']':
			depth--
			data = append(append(data, compact[begun:i]...), tabs[:depth+1]...)
			begun = i
		case c == ',':
			data = append(append(data, compact[begun:i+1]...), tabs[:depth+1]...)
			begun = i + 1
		case c == ':':
			data = append(append(data, compact[begun:i]...), ": "...)
			begun = i + 1
		}
	}
	return append(data, compact[begun:]...)
}

// unseal decodes the content of the file at path, which holds data, and returns its checksum. It
// returns *DamagedError if the file is not as seal wrote it, or as a person may have repaired it.
func unseal(path string, data []byte, content any) (checksum string, err error) {
	var e envelope
	if err := strictly(data, &e); err != nil {
		return "", &DamagedError{Path: path, Reason: err.Error()}
	}
	if e.Format != format {
		return "", &DamagedError{Path: path, Reason: fmt.Sprintf("its format is %d, this release knows %d", e.Format, format)}
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, e.Content); err != nil {
		return "", &DamagedError{Path: path, Reason: "it has no content"}
	}
	checksum = sum(compact.Bytes())
	if e.Checksum != "" && e.Checksum != checksum { // without one, somebody has repaired it
		return "", &DamagedError{Path: path, Reason: "its checksum is not that of its content"}
	}
	if err := strictly(compact.Bytes(), content); err != nil {
		return "", &DamagedError{Path: path, Reason: err.Error()}
	}
	return checksum, nil
}

// readSealed decodes the content of the file at path and returns its bytes and its checksum, or
// nothing if there is no such file. It returns *DamagedError as unseal does.
func readSealed(path string, content any) (data []byte, checksum string, err error) {
	data, _, err = readFile(path)
	if errors.Is(err, iofs.ErrNotExist) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	checksum, err = unseal(path, data, content)
	return data, checksum, err
}

// strictly decodes data, which is one JSON value, and refuses what target does not know.
func strictly(data []byte, target any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(target); err != nil {
		if errors.Is(err, io.EOF) {
			return errors.New("it is empty")
		}
		return fmt.Errorf("it is not as it was written: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("it goes on after its end")
	}
	return nil
}

func sum(data []byte) string {
	digest := sha256.Sum256(data)
	return hex.EncodeToString(digest[:])
}

// nesting returns how deep the objects and arrays of a JSON text go.
func nesting(text []byte) int {
	depth, most := 0, 0
	quoted, escaped := false, false
	for _, c := range text {
		switch {
		case escaped:
			escaped = false
		case quoted:
			escaped, quoted = c == '\\', c != '"'
		case c == '"':
			quoted = true
		case c == '{' || c == '[':
			depth++
			most = max(most, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return most
}

// private is the mode of files.
const private os.FileMode = 0o600

// writeTemp writes a temporary file and syncs it. Its name tells by which lock it is protected: whoever has that lock exclusively knows that no other temporary
// file of it is in use.
func (s *Store) writeTemp(lock int, data []byte, mode os.FileMode) (path string, err error) {
	if mode == tentative && len(data) <= largestSpare {
		if spare, size := s.takeSpare(lock); spare != nil {
			err := overwrite(spare, size, data)
			letGo(spare)
			return written(spare.Name(), err)
		}
	}
	file, err := s.newTemp(lock, mode)
	if err != nil {
		return "", err
	}
	return written(file.Name(), writeSynced(file, data))
}

// written returns path, unless the file there could not be written. Then it may not be complete, and is never tried again.
func written(path string, err error) (string, error) {
	if err != nil {
		_ = os.Remove(path)
		return "", err
	}
	return path, nil
}

// tempLock returns the lock that protects the temporary file of this name.
func tempLock(name string) (lock int, ok bool) {
	prefix, _, _ := strings.Cut(name, "-")
	return lockNumber(prefix)
}

// writeSynced writes data to a new file, and syncs and closes it. A file that could not be synced
// is lost: the kernel may have forgotten that its pages were never written.
func writeSynced(file *os.File, data []byte) error {
	if _, err := file.Write(data); err != nil {
		return errors.Join(err, file.Close())
	}
	if err := file.Sync(); err != nil {
		return errors.Join(err, file.Close())
	}
	return file.Close()
}

// overwrite writes data in the place of what is in a file, so many bytes, and syncs it. What is said at writeSynced holds here as well.
func overwrite(file *os.File, size int64, data []byte) error {
	if _, err := file.Write(data); err != nil {
		return err
	}
	if size > int64(len(data)) {
		if err := file.Truncate(int64(len(data))); err != nil {
			return err
		}
	}
	return syncData(file)
}

// replace puts data durably in the place of the file at path, which the given lock protects.
func (s *Store) replace(lock int, path string, data []byte) error {
	temp, err := s.writeTemp(lock, data, private)
	if err != nil {
		return err
	}
	if err := rename(temp, path); err != nil {
		_ = os.Remove(temp)
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// makeFolder makes the folder at path and those above it where they are missing, and makes its
// entry in the folder above durable, also if it was there: whoever made it may not have come to
// that. A new folder whose entry could not be synced is removed, for a second sync would prove
// nothing.
func makeFolder(path string) error {
	err := os.Mkdir(path, 0o700)
	if errors.Is(err, iofs.ErrNotExist) && filepath.Dir(path) != path {
		if err := makeFolder(filepath.Dir(path)); err != nil {
			return err
		}
		err = os.Mkdir(path, 0o700)
	}
	made := err == nil
	if err != nil && !errors.Is(err, iofs.ErrExist) {
		return err
	}
	if err := syncFolder(filepath.Dir(path)); err != nil {
		if made {
			_ = os.Remove(path) // fails if a file was put into it meanwhile
		}
		return err
	}
	return nil
}

// maxFolders is how many folders are remembered; there is one for each kind, but also for each id
// too long for one name.
const maxFolders = 4096

// folder makes sure that the folder at path is there and durable, and remembers that it is.
func (s *Store) folder(path string) error {
	if _, known := s.folders.Load(path); known || path == s.dir {
		return nil
	}
	if err := s.folder(filepath.Dir(path)); err != nil {
		return err
	}
	if err := makeFolder(path); err != nil {
		return err
	}
	if s.folderCount.Add(1)%maxFolders == 0 {
		s.folders.Clear()
	}
	s.folders.Store(path, true)
	return nil
}

// syncFolders syncs the folders of these files, each once.
func syncFolders(files []string) error {
	done := make(map[string]bool)
	for _, file := range files {
		folder := filepath.Dir(file)
		if done[folder] {
			continue
		}
		if err := syncFolder(folder); err != nil {
			return err
		}
		done[folder] = true
	}
	return nil
}

// readNames returns the names of what is in a folder, in no order.
func readNames(folder string) ([]string, error) {
	file, err := openFile(folder, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	names, err := file.Readdirnames(-1)
	return names, errors.Join(err, file.Close())
}
