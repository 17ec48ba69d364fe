package stream

// Interrupt calls fn at each point of the work on a stream.
func (l *Log) Interrupt(fn func(point, stream string)) {
	l.hook = func(p point, stream string) { fn(string(p), stream) }
}

// Points of CloseStream.
var ClosePoints = []string{string(pointGuarded), string(pointArchived), string(pointRecorded), string(pointEnded)}
