"""Recurrent layers, LSTM, GRU and RNN: one call computes all time steps of one direction."""
