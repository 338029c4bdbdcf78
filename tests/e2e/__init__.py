"""Every advertised API in every version, asked of a broker process: one fact each."""
