package sse

var Process = process
