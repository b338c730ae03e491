package process

import processpb "aenv/native/gen/process"

// channel is one of the ways in which a process speaks.
type channel uint8

const (
	stdout channel = iota
	stderr
	terminal
)

// event makes what a client reads of data, which must not be changed afterwards.
func (c channel) event(data []byte) *processpb.ProcessEvent {
	output := &processpb.ProcessEvent_DataEvent{}
	switch c {
	case stdout:
		output.Output = &processpb.ProcessEvent_DataEvent_Stdout{Stdout: data}
	case stderr:
		output.Output = &processpb.ProcessEvent_DataEvent_Stderr{Stderr: data}
	case terminal:
		output.Output = &processpb.ProcessEvent_DataEvent_Pty{Pty: data}
	}
	return &processpb.ProcessEvent{Event: &processpb.ProcessEvent_Data{Data: output}}
}
