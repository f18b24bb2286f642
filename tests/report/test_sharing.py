from flexcomp.report import shared_processor, waiting


def test_waiting_stands_beside_what_storage_explains():
    assert waiting(1178.0, 234.0) == "1178.00 ms, storage was busy 234.00 ms"
    assert waiting(1178.0, None) == "1178.00 ms"


def test_a_shared_processor_is_said_where_it_matters():
    assert shared_processor(1500.0, 944.0) == (
        "the processor was shared: within 1500.00 ms threads were ready for 944.00 ms while other threads had the cores"
    )
    assert shared_processor(1500.0, 20.0) is None
    assert shared_processor(1500.0, None) is None  # a system that does not say
